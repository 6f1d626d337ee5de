// What the harnesses share. A harness feeds one input to one parser: whatever the input is, the
// parser returns or throws its own kind of fault, and no sanitizer has anything to say.
#ifndef FUZZ_H_
#define FUZZ_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace fuzz {

inline std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// What must always hold: the fuzzer keeps the input with which it does not.
inline void Must(bool holds) {
  if (!holds) abort();
}

// Runs a parser; whether it did not refuse the input. Any other exception ends the program.
template <typename Fault, typename Call>
bool Accepts(Call call) {
  try {
    call();
    return true;
  } catch (const Fault&) {
    return false;
  }
}

// Takes bytes from the front; zeros where there are none.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  template <typename Value>
  Value Take() {
    Value value = {};
    const size_t count = std::min(sizeof value, size_);
    memcpy(static_cast<void*>(&value), data_, count);
    data_ += count;
    size_ -= count;
    return value;
  }

  // A copy of its own, so that the sanitizer sees its ends.
  std::unique_ptr<uint8_t[]> Copy(size_t count) {
    std::unique_ptr<uint8_t[]> copy(new uint8_t[count]);
    memcpy(copy.get(), data_, count);
    data_ += count;
    size_ -= count;
    return copy;
  }

  size_t size() const { return size_; }

 private:
  const uint8_t* data_;
  size_t size_;
};

// A file that holds the input, in memory, under a path that can be opened.
class File {
 public:
  File();
  const std::string& With(const uint8_t* data, size_t size);

 private:
  int file_;
  std::string path_;
};

// A folder of this process alone, which is gone when it ends.
const std::string& Folder();
void Write(const std::string& path, const uint8_t* data, size_t size);

// A pair of connected sockets. What was sent to the second can be received from the first.
struct Pair {
  Pair();
  ~Pair();
  void Send(const uint8_t* data, size_t size) const;
  int here = -1, there = -1;
};

}  // namespace fuzz

#endif  // FUZZ_H_
