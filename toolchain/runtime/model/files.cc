// See files.h. Plain POSIX calls, because each failure is reported with its own reason.
#include "files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdint>
#include <cstring>
#include <utility>

#include "../crypto/crypto.h"
#include "fault.h"

namespace edge {
namespace {

[[noreturn]] void FailWithErrno(ExitCode code, const std::string& what, const std::string& path) {
  throw Fault(code, what + ": " + strerror(errno), path);
}

// Smaller files are not worth a descriptor, nor the search for one.
constexpr size_t kLeastShared = 1 << 20;

[[noreturn]] void FailAsUnsigned(const std::string& path) {
  throw Fault(kExitUntrusted, "the file is not the one that was signed", path);
}

// Asked of the kernel itself: the C library of some boards is older than this call.
int AnonymousFile(const std::string& name) {
  constexpr unsigned kCloexec = 1, kAllowSealing = 2, kExecutable = 16;
  const std::string last = name.substr(name.rfind('/') + 1);
  for (const unsigned flags : {kCloexec | kAllowSealing | kExecutable, kCloexec | kAllowSealing}) {
    const long number = syscall(SYS_memfd_create, last.c_str(), flags);
    if (number >= 0) return static_cast<int>(number);
    if (errno != EINVAL) break;  // of a kernel that does not know of executable ones
  }
  FailWithErrno(kExitLoad, "cannot make a file in memory for the library", name);
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

void WriteAll(int descriptor, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) FailWithErrno(kExitUsage, "cannot write the file", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void WriteNewFile(const std::string& path, const std::vector<std::string_view>& parts) {
  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) FailWithErrno(kExitUsage, "cannot create the file", path);
  for (std::string_view part : parts) WriteAll(file.get(), part, path);
  if (fsync(file.get()) != 0) FailWithErrno(kExitUsage, "cannot sync the file", path);
}

size_t PageSize() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// The whole pages that a part of a map lies in.
std::pair<char*, char*> PagesOf(std::string_view part) {
  const auto begin = reinterpret_cast<uintptr_t>(part.data()) / PageSize() * PageSize();
  return {reinterpret_cast<char*>(begin), const_cast<char*>(part.data() + part.size())};
}

// A rename is on the disk only once its folder is. Some file systems cannot do this; the rename
// holds anyway.
void SyncFolder(const std::string& folder) {
  Descriptor descriptor(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() >= 0) fsync(descriptor.get());
}

}  // namespace

MappedFile::MappedFile(const std::string& path, const FileDigest& digest) : path_(path) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0) {
    FailWithErrno(kExitInput, "cannot open the file", path);
  }
  if (!S_ISREG(status.st_mode)) throw Fault(kExitInput, "not a regular file", path);
  const std::string& sha256 = digest.sha256;
  if (!sha256.empty() && static_cast<uint64_t>(status.st_size) != digest.size) FailAsUnsigned(path);
  // 32 bits would keep only the rest of a longer size, and the file would pass for a shorter one.
  const auto size = static_cast<size_t>(status.st_size);
  if (status.st_size != static_cast<off_t>(size)) {
    throw Fault(kExitInput, "the file is larger than this device's memory", path);
  }
  try {
    if (sha256.empty()) {
      Map(file.get(), size);
    } else if (size < kLeastShared || !MapFixed(file.get(), size, sha256)) {
      Copy(file.get(), size, sha256);
    }
  } catch (const Fault&) {
    Unmap();
    throw;
  }
}

// An empty map is an error to mmap, an empty file is not one here.
void MappedFile::Map(int file, size_t size) {
  if (size == 0) return;
  void* const data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED) FailWithErrno(kExitInput, "cannot map the file", path_);
  data_ = data;
  size_ = size;
}

// Whether there are bytes that nobody can change: then they have been mapped, and have the digest.
bool MappedFile::MapFixed(int file, size_t size, const std::string& sha256) {
  const auto has_digest = [&](int other) {
    Unmap();
    Map(other, size);
    return HexSha256(bytes()) == sha256;
  };
  fixed_ = OpenFixed(file, size, sha256, has_digest);
  if (fixed_.file.get() < 0) {
    Unmap();
    return false;
  }
  guard_ = fixed_.guard;
  if (guard_ != Guard::kShared && !has_digest(fixed_.file.get())) FailAsUnsigned(path_);
  return true;
}

void MappedFile::Copy(int file, size_t size, const std::string& sha256) {
  guard_ = Guard::kCopy;
  if (size != 0) {
    void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) FailWithErrno(kExitInput, "cannot map the file", path_);
    data_ = data;
    size_ = size;
  }
  for (size_t done = 0; done < size;) {
    const ssize_t got = pread(file, static_cast<char*>(data_) + done, size - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;  // the rest stays zero, and the digest tells
    done += static_cast<size_t>(got);
  }
  if (HexSha256(bytes()) != sha256) FailAsUnsigned(path_);
  if (size_ != 0 && mprotect(data_, size_, PROT_READ) != 0) {
    FailWithErrno(kExitLoad, "cannot protect the memory of the file", path_);
  }
}

void MappedFile::Unmap() {
  if (size_ != 0) munmap(data_, size_);
  size_ = 0;
}

MappedFile::~MappedFile() { Unmap(); }

void MappedFile::DropPages(std::string_view part) const {
  if (part.empty() || guard_ == Guard::kCopy) return;
  const auto [begin, end] = PagesOf(part);
  madvise(begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
}

void MappedFile::LoadPages(std::string_view part) const {
  if (part.empty() || guard_ == Guard::kCopy) return;
  const auto [begin, end] = PagesOf(part);
  madvise(begin, static_cast<size_t>(end - begin), MADV_WILLNEED);
  // MADV_POPULATE_READ would do this, but kernels before 5.14 lack it.
  volatile char byte = part.back();
  for (size_t at = 0; at < part.size(); at += PageSize()) byte = part[at];
  static_cast<void>(byte);
}

SealedFile::SealedFile(std::string_view bytes, const std::string& name)
    : number_(AnonymousFile(name)) {
  try {
    WriteAll(number_, bytes, path());
    constexpr int kSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
    if (fcntl(number_, F_ADD_SEALS, kSeals) != 0) FailWithErrno(kExitLoad, "cannot seal", path());
  } catch (const Fault& fault) {
    close(number_);
    throw Fault(kExitLoad, fault.what(), name);
  }
}

SealedFile::~SealedFile() { close(number_); }

std::string PathInside(const std::string& folder, const std::string& name,
                       const std::string& source) {
  const std::string quoted = "file name \"" + name + "\"";
  if (name.empty() || name.find('\0') != std::string::npos) {
    throw Fault(kExitInput, quoted + " is empty or has a NUL byte", source);
  }
  if (name.front() == '/') {
    throw Fault(kExitInput, quoted + " must be relative to the release", source);
  }
  const std::string framed = "/" + name + "/";
  if (framed.find("/../") != std::string::npos) {
    throw Fault(kExitInput, quoted + " must not contain \"..\"", source);
  }
  return folder + "/" + name;
}

void CheckWritable(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    throw Fault(kExitUsage, "cannot write the file: it is a folder", path);
  }
  const std::string folder = FolderOf(path);
  if (stat(folder.c_str(), &status) != 0) {
    FailWithErrno(kExitUsage, "cannot write to the folder " + folder, path);
  }
  if (!S_ISDIR(status.st_mode)) throw Fault(kExitUsage, folder + " is not a folder", path);
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    FailWithErrno(kExitUsage, "cannot write to the folder " + folder, path);
  }
}

void WriteAtomically(const std::string& path, const std::vector<std::string_view>& parts) {
  const std::string temporary = path + ".tmp." + std::to_string(getpid());
  try {
    WriteNewFile(temporary, parts);
    if (rename(temporary.c_str(), path.c_str()) != 0) {
      FailWithErrno(kExitUsage, "cannot rename the finished file", path);
    }
  } catch (const Fault&) {
    unlink(temporary.c_str());
    throw;
  }
  SyncFolder(FolderOf(path));
}

}  // namespace edge
