// Base64 over another stream, for tensors in TVM's JSON. Written from how TVM's runtime uses it;
// see tvm/support/io.h.
#ifndef TVM_SUPPORT_BASE64_H_
#define TVM_SUPPORT_BASE64_H_

#include <tvm/support/io.h>

#include <cstdint>
#include <string_view>

namespace tvm {
namespace support {

inline constexpr std::string_view kBase64Digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

class Base64OutStream : public Stream {
 public:
  explicit Base64OutStream(Stream* stream) : stream_(stream) {}

  using Stream::Read;
  using Stream::Write;

  size_t Read(void* /*data*/, size_t /*size*/) final { return 0; }
  size_t Write(const void* data, size_t size) final {
    const uint8_t* bytes = static_cast<const uint8_t*>(data);
    for (size_t i = 0; i < size; ++i) {
      group_ = group_ << 8 | bytes[i];
      if (++held_ == 3) Flush();
    }
    return size;
  }

  // Writes the last, incomplete group.
  void Finish() {
    if (held_ != 0) Flush();
  }

 private:
  void Flush() {
    const uint32_t bits = group_ << 8 * (3 - held_);
    char digits[] = "====";
    for (unsigned i = 0; i <= held_; ++i) digits[i] = kBase64Digits[bits >> (18 - 6 * i) & 63];
    stream_->Write(digits, 4);
    group_ = 0;
    held_ = 0;
  }

  Stream* stream_;
  uint32_t group_ = 0;
  unsigned held_ = 0;  // bytes of the group, below 3
};

class Base64InStream : public Stream {
 public:
  explicit Base64InStream(Stream* stream) : stream_(stream) {}

  using Stream::Read;
  using Stream::Write;

  // Nothing to find: the digits start with the stream.
  void InitPosition() {}

  size_t Read(void* data, size_t size) final {
    uint8_t* bytes = static_cast<uint8_t*>(data);
    size_t count = 0;
    while (count < size && NextByte(bytes + count)) ++count;
    return count;
  }
  size_t Write(const void* /*data*/, size_t /*size*/) final { return 0; }

 private:
  bool NextByte(uint8_t* byte) {
    while (bits_ < 8) {
      char digit = 0;
      if (stream_->Read(&digit, 1) != 1) return false;
      const size_t value = kBase64Digits.find(digit);
      if (value == std::string_view::npos) return false;  // the padding, or what is no base64
      group_ = group_ << 6 | static_cast<uint32_t>(value);
      bits_ += 6;
    }
    bits_ -= 8;
    *byte = static_cast<uint8_t>(group_ >> bits_);
    return true;
  }

  Stream* stream_;
  uint32_t group_ = 0;
  unsigned bits_ = 0;  // of the group, not yet given
};

}  // namespace support
}  // namespace tvm

#endif  // TVM_SUPPORT_BASE64_H_
