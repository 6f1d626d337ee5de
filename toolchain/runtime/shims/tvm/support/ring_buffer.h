// The bytes that were received and not yet read, or written and not yet sent. Written from how
// TVM's RPC endpoint uses it. No ring: the two sides of a connection take turns, so it runs
// empty after every message and starts at its beginning again.
#ifndef TVM_SUPPORT_RING_BUFFER_H_
#define TVM_SUPPORT_RING_BUFFER_H_

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

namespace tvm {
namespace support {

class RingBuffer {
 public:
  size_t bytes_available() const { return end_ - begin_; }

  // Makes room for `size` bytes in all. The memory stays untouched until bytes arrive: a message
  // that only claims to be huge costs a device nothing.
  void Reserve(size_t size) {
    if (begin_ + size <= capacity_) return;
    if (size > capacity_) {
      Move(std::max(size, 2 * capacity_));
    } else {
      memmove(data_.get(), data_.get() + begin_, bytes_available());
      end_ -= begin_;
      begin_ = 0;
    }
  }

  void Read(void* data, size_t size) {
    TVM_FFI_CHECK(size <= bytes_available(), RuntimeError) << "a message is shorter than it says";
    memcpy(data, data_.get() + begin_, size);
    Drop(size);
  }

  void Write(const void* data, size_t size) {
    Reserve(bytes_available() + size);
    memcpy(data_.get() + end_, data, size);
    end_ += size;
  }

  // Gives up to `most` bytes to send(data, size), which returns how many it took.
  template <typename Send>
  size_t ReadWithCallback(Send send, size_t most) {
    const size_t sent = send(data_.get() + begin_, std::min(most, bytes_available()));
    Drop(sent);
    return sent;
  }

  // Has receive(data, size) write up to `most` bytes; it returns how many it wrote.
  template <typename Receive>
  size_t WriteWithCallback(Receive receive, size_t most) {
    Reserve(bytes_available() + most);
    const size_t received = receive(data_.get() + end_, most);
    end_ += received;
    return received;
  }

 private:
  static constexpr size_t kKept = 1 << 20;

  void Move(size_t capacity) {
    std::unique_ptr<char[]> larger(new char[capacity]);
    if (bytes_available() != 0) memcpy(larger.get(), data_.get() + begin_, bytes_available());
    data_ = std::move(larger);
    end_ -= begin_;
    begin_ = 0;
    capacity_ = capacity;
  }

  void Drop(size_t size) {
    begin_ += size;
    if (begin_ != end_) return;
    begin_ = end_ = 0;
    if (capacity_ <= kKept) return;
    data_.reset();  // what a large message needed is given back after it
    capacity_ = 0;
  }

  std::unique_ptr<char[]> data_;
  size_t capacity_ = 0;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace support
}  // namespace tvm

#endif  // TVM_SUPPORT_RING_BUFFER_H_
