// The runtime's files, but mapped to memory that ends where the file ends: the sanitizer does not
// see a read behind it in a page of the kernel's.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

namespace {

void* CopyOf(size_t size, int, int, int file) {
  void* const data = malloc(size);
  if (file < 0) return data;  // memory that belongs to no file
  return pread(file, data, size, 0) == static_cast<ssize_t>(size) ? data : MAP_FAILED;
}

}  // namespace

#define mmap(at, size, protection, flags, file, offset) CopyOf(size, protection, flags, file)
#define munmap(data, size) free(data)
#define mprotect(data, size, protection) 0
#define madvise(data, size, advice) static_cast<void>(data)
#include "../../toolchain/runtime/model/files.cc"
#undef mmap
#undef munmap
#undef mprotect
#undef madvise
