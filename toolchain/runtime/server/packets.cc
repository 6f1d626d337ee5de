// See packets.h. Numbers go out in the machine's own order, as TVM sends them; the boards and hosts
// that TVM knows are little-endian.
#include "packets.h"

#include <tvm/ffi/c_api.h>

#include <algorithm>
#include <cstring>

namespace board_server {
namespace {

constexpr int32_t kException = 5;  // TVM's RPCCode::kException

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

std::string Int32Bytes(int32_t value) { return Bytes(value); }

std::string ExceptionPacket(const std::string& message) {
  const std::string body = Bytes<int32_t>(kException) + Bytes<int32_t>(1) +
                           Bytes<int32_t>(kTVMFFIRawStr) + Bytes<uint64_t>(message.size()) +
                           message;
  return Bytes<uint64_t>(body.size()) + body;
}

void PacketMeter::Add(const char* data, size_t size) {
  while (size > 0) {
    size_t used = 0;
    if (body_left_ > 0) {
      used = static_cast<size_t>(std::min<uint64_t>(body_left_, size));
      body_left_ -= used;
    } else {
      used = std::min(sizeof(header_) - header_size_, size);
      memcpy(header_ + header_size_, data, used);
      header_size_ += static_cast<uint32_t>(used);
      if (header_size_ == sizeof(header_)) {
        memcpy(&body_left_, header_, sizeof(header_));
        header_size_ = 0;
      }
    }
    data += used;
    size -= used;
  }
}

}  // namespace board_server
