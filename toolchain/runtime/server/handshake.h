// What a client says before its session: [magic, length of the key, key]. It is read as it comes
// in, never waited for.
#ifndef BOARD_SERVER_HANDSHAKE_H_
#define BOARD_SERVER_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "sockets.h"

namespace board_server {

constexpr size_t kMaxServerKey = 200;
constexpr size_t kMaxClientKey = 1024;

class Handshake {
 public:
  enum class State { kPending, kComplete, kRefused };

  Handshake(Descriptor socket, std::string peer, int64_t deadline)
      : socket_(std::move(socket)), peer_(std::move(peer)), deadline_(deadline) {}

  // Takes what has arrived. Not a byte after the key is read: those belong to the session.
  State Advance();

  int socket() const { return socket_.get(); }
  int64_t deadline() const { return deadline_; }
  const std::string& peer() const { return peer_; }
  const std::string& key() const { return key_; }
  // Why, once it is refused.
  const std::string& reason() const { return reason_; }
  Descriptor TakeSocket() { return std::move(socket_); }

 private:
  State Refuse(const std::string& reason);
  State CheckHeader();

  Descriptor socket_;
  std::string peer_;
  int64_t deadline_;
  std::string received_;
  size_t key_size_ = 0;
  std::string key_;
  std::string reason_;
};

// A client's key: "client:<match key> -timeout=5".
struct ClientKey {
  bool valid = false;
  std::string match_key;
  double timeout = 0;  // seconds; 0: none
};

ClientKey ParseClientKey(const std::string& text);

}  // namespace board_server

#endif  // BOARD_SERVER_HANDSHAKE_H_
