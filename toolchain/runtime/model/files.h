// Files: read-only maps, atomic writes, and names that stay inside a release.
#ifndef MODEL_FILES_H_
#define MODEL_FILES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fixed_file.h"

namespace edge {

// What a file was signed as: SHA-256 as 64 hexadecimal digits, empty if nobody signed it, and its bytes.
struct FileDigest {
  std::string sha256;
  uint64_t size = 0;
};

// A whole regular file, mapped read-only for the object's lifetime. Faults are kExitInput.
//
// With a digest, the bytes have it, whatever somebody writes to the file meanwhile; a fault of
// kExitUntrusted if they have another one, and before they are read if there are more or fewer. `guard`
// says how. Nothing can be written to the map.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path, const FileDigest& digest = {});
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }
  Guard guard() const { return guard_; }

  // Gives the pages back, so that a file once copied does not count in the peak memory.
  void DropPages() const { DropPages(bytes()); }

  // The same for a part of `bytes`, to whole pages. A private copy keeps its pages.
  void DropPages(std::string_view part) const;

  // Reads a part of `bytes` from the disk, so that its first use does not wait for that.
  void LoadPages(std::string_view part) const;

 private:
  void Map(int file, size_t size);
  bool MapFixed(int file, size_t size, const std::string& sha256);
  void Copy(int file, size_t size, const std::string& sha256);
  void Unmap();

  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
  FixedFile fixed_;  // open for as long as others may want to share it
  Guard guard_ = Guard::kNothing;
};

// A file without a name that holds bytes and that nobody can change: what a library is loaded from
// that must have the bytes that were checked. Faults are kExitLoad.
class SealedFile {
 public:
  SealedFile(std::string_view bytes, const std::string& name);
  ~SealedFile();
  SealedFile(const SealedFile&) = delete;
  SealedFile& operator=(const SealedFile&) = delete;

  // Names no other file while this one is there.
  std::string path() const { return "/proc/self/fd/" + std::to_string(number_); }

 private:
  int number_;
};

// `folder`/`name`, or a kExitInput fault that blames `source` if `name` may lead out of `folder`.
std::string PathInside(const std::string& folder, const std::string& name,
                       const std::string& source);

// Finds out before the work whether `path` can be written after it. Faults are kExitUsage.
void CheckWritable(const std::string& path);

// Writes the parts one after the other to a temporary neighbour, syncs it, and renames it to
// `path`, so that a reader sees the old file or the new one. Faults are kExitUsage.
void WriteAtomically(const std::string& path, const std::vector<std::string_view>& parts);

}  // namespace edge

#endif  // MODEL_FILES_H_
