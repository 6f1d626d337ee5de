// Streams over bytes in memory. Written from how TVM's runtime uses them; see tvm/support/io.h.
#ifndef TVM_SUPPORT_BYTES_IO_H_
#define TVM_SUPPORT_BYTES_IO_H_

#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tvm {
namespace support {

// Reads bytes that outlive it.
class BytesInStream : public Stream {
 public:
  explicit BytesInStream(const std::string& bytes) : next_(bytes.data()), left_(bytes.size()) {}
  explicit BytesInStream(const ffi::Bytes& bytes) : next_(bytes.data()), left_(bytes.size()) {}

  using Stream::Read;
  using Stream::Write;

  size_t Read(void* data, size_t size) final {
    const size_t count = std::min(size, left_);
    if (count != 0) memcpy(data, next_, count);
    next_ += count;
    left_ -= count;
    return count;
  }
  size_t Write(const void* /*data*/, size_t /*size*/) final { return 0; }

 private:
  const char* next_;
  size_t left_;
};

// Appends to a string that outlives it.
class BytesOutStream : public Stream {
 public:
  explicit BytesOutStream(std::string* bytes) : bytes_(bytes) {}

  using Stream::Read;
  using Stream::Write;

  size_t Read(void* /*data*/, size_t /*size*/) final { return 0; }
  size_t Write(const void* data, size_t size) final {
    bytes_->append(static_cast<const char*>(data), size);
    return size;
  }

 private:
  std::string* bytes_;
};

}  // namespace support
}  // namespace tvm

#endif  // TVM_SUPPORT_BYTES_IO_H_
