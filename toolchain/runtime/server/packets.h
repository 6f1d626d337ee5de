// The parts of TVM's RPC protocol that the server speaks itself, beside the session's process.
//
// A packet is its length (64 bits), its code (32 bits) and what the code asks for. After a request
// a client waits for exactly one packet; an exception is as good an answer as any.
#ifndef BOARD_SERVER_PACKETS_H_
#define BOARD_SERVER_PACKETS_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace board_server {

constexpr int32_t kRpcMagic = 0xFF271;
constexpr int32_t kRpcMismatch = kRpcMagic + 2;

std::string Int32Bytes(int32_t value);

// The packet that makes the client's call fail with `message`. One that begins with
// "RPCSessionTimeoutError: " becomes an exception of that type there.
std::string ExceptionPacket(const std::string& message);

// Follows a stream of packets, to know when it is between two of them. Plain data without pointers:
// it lives in memory that two processes share.
class PacketMeter {
 public:
  void Add(const char* data, size_t size);
  bool AtBoundary() const { return header_size_ == 0 && body_left_ == 0; }

 private:
  char header_[sizeof(uint64_t)] = {};
  uint32_t header_size_ = 0;
  uint64_t body_left_ = 0;
};

}  // namespace board_server

#endif  // BOARD_SERVER_PACKETS_H_
