// See fuzz.h.
#include "fuzz.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

namespace fuzz {
namespace {

void WriteAll(int file, const uint8_t* data, size_t size) {
  Must(ftruncate(file, 0) == 0);
  Must(pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
}

struct Temporary {
  Temporary() {
    char name[] = "/dev/shm/edge-fuzz-XXXXXX";
    Must(mkdtemp(name) != nullptr);
    path = name;
  }
  ~Temporary() { std::filesystem::remove_all(path); }
  std::string path;
};

}  // namespace

File::File() : file_(memfd_create("input", MFD_CLOEXEC)) {
  Must(file_ >= 0);
  path_ = "/proc/self/fd/" + std::to_string(file_);
}

const std::string& File::With(const uint8_t* data, size_t size) {
  WriteAll(file_, data, size);
  return path_;
}

const std::string& Folder() {
  static const Temporary folder;
  return folder.path;
}

void Write(const std::string& path, const uint8_t* data, size_t size) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  Must(file >= 0);
  WriteAll(file, data, size);
  close(file);
}

Pair::Pair() {
  int ends[2];
  Must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  here = ends[0];
  there = ends[1];
}

Pair::~Pair() {
  if (here >= 0) close(here);
  if (there >= 0) close(there);
}

void Pair::Send(const uint8_t* data, size_t size) const {
  Must(send(there, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size));
}

}  // namespace fuzz
