// Files whose bytes nobody can change any more: what was verified once stays what is used, and
// processes share it.
#ifndef MODEL_FIXED_FILE_H_
#define MODEL_FIXED_FILE_H_

#include <unistd.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace edge {

// Closes a descriptor at the end of its life.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int get() const { return number_; }

 private:
  int number_;
};

// What keeps the bytes of a mapped file as they are.
enum class Guard {
  kNothing,  // whoever may write to the file changes them
  kCopy,     // they are memory of this process alone
  kVerity,   // the file system refuses each write, by fs-verity
  kSealed,   // they are a sealed file in memory, made by this process
  kShared,   // they are one that another process, or another model of this one, has made
};

// As edge_release::weights has it.
const char* NameOf(Guard guard);

// Whether a file system of the kernel itself refuses each write to an open file, whoever asks.
bool HasVerity(int file);

// Has the file system refuse each write from now on, if it can and the caller may ask for that.
void EnableVerity(const std::string& path);

// The bytes of a file, from now on such that nobody can change them.
struct FixedFile {
  Descriptor file;  // none where the kernel has no such files
  Guard guard = Guard::kNothing;
};

// `has_digest` maps a descriptor and says whether its bytes have the digest. It was true of a kShared
// one that is returned; the caller has to ask it about the others. Nothing that another process says
// is believed: the kernel says that a file is sealed, and the digest is computed here.
FixedFile OpenFixed(int file, size_t size, const std::string& sha256,
                    const std::function<bool(int)>& has_digest);

}  // namespace edge

#endif  // MODEL_FIXED_FILE_H_
