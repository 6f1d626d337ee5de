// See registers.h.
#include "registers.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fault.h"

namespace vta {
namespace {

constexpr uint64_t kRegisterPage = 4096;

}  // namespace

DevMem::DevMem(const std::string& path) : path_(path) {
  // O_SYNC: registers are not cached.
  file_ = open(path.c_str(), O_RDWR | O_SYNC | O_CLOEXEC);
  if (file_ < 0) {
    const bool refused = errno == EACCES || errno == EPERM;
    Fail("cannot open " + path + ": " + strerror(errno) +
         (refused ? "; the FPGA's registers are for root alone: run this program as root" : ""));
  }
  if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    close(file_);
    Fail(error == EWOULDBLOCK ? "another process uses the FPGA: wait until it has ended"
                              : "cannot lock " + path + ": " + strerror(error));
  }
}

DevMem::~DevMem() {
  for (const auto& page : pages_) munmap(page.second, kRegisterPage);
  close(file_);
}

volatile uint32_t* DevMem::Address(uint64_t physical) {
  const uint64_t start = physical / kRegisterPage * kRegisterPage;
  uint8_t*& page = pages_[start];
  if (page == nullptr) {
    void* mapped = mmap(nullptr, kRegisterPage, PROT_READ | PROT_WRITE, MAP_SHARED, file_,
                        static_cast<off_t>(start));
    if (mapped == MAP_FAILED) {
      Fail("cannot map the FPGA's registers from " + path_ + ": " + strerror(errno));
    }
    page = static_cast<uint8_t*>(mapped);
  }
  return reinterpret_cast<volatile uint32_t*>(page + (physical - start));
}

}  // namespace vta
