// What the harnesses share. A harness feeds one input to one parser: whatever the input is, the
// parser returns or throws its own kind of fault, and no sanitizer has anything to say.
#ifndef FUZZ_H_
#define FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
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
