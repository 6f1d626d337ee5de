// See load.h.
#include "load.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "../model/fault.h"

namespace runner {
namespace {

using edge::Fault;
using edge::kExitRunFailed;
using edge::kExitUsage;

constexpr int64_t kBlock = 1 << 20;
constexpr int64_t kFileBlocks = 32;
constexpr int64_t kMostBytes = 64 << 20;  // larger than most caches
constexpr int64_t kShareOfMemory = 16;    // of all such processes together

int UsableCpus() {
  cpu_set_t cpus;
  return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? std::max(CPU_COUNT(&cpus), 1) : 1;
}

[[noreturn]] void KeepCpuBusy() {
  for (volatile uint64_t value = 1;; value = value * 6364136223846793005U + 1) {
  }
}

[[noreturn]] void KeepMemoryBusy() {
  const int64_t physical = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const size_t half = static_cast<size_t>(
      std::max(std::min(kMostBytes, physical / kShareOfMemory / UsableCpus()), 2 * kBlock) / 2);
  const std::unique_ptr<char[]> bytes(new char[2 * half]);
  memset(bytes.get(), 1, 2 * half);
  for (;;) {
    memcpy(bytes.get(), bytes.get() + half, half);
    // Otherwise a compiler could leave out the copies.
    asm volatile("" : : "r"(bytes.get()) : "memory");
    memcpy(bytes.get() + half, bytes.get(), half);
    asm volatile("" : : "r"(bytes.get()) : "memory");
  }
}

// Returns only if it fails.
void KeepDiskBusy(const std::string& folder) {
  const std::string path = folder + "/load." + std::to_string(getpid());
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return;
  unlink(path.c_str());
  const std::vector<char> block(static_cast<size_t>(kBlock), 'x');
  for (;;) {
    for (int64_t number = 0; number < kFileBlocks; ++number) {
      if (pwrite(file, block.data(), block.size(), number * kBlock) != kBlock) return;
    }
    if (fdatasync(file) != 0) return;
  }
}

}  // namespace

Load::Load(const std::string& kind, const std::string& folder) : kind_(kind) {
  if (kind.empty()) return;
  if (kind != "cpu" && kind != "memory" && kind != "io") {
    throw Fault(kExitUsage, "--load must be cpu, memory or io, not \"" + kind + "\"");
  }
  if (pipe2(gate_, O_CLOEXEC) != 0) throw Fault(kExitRunFailed, "the load cannot be started");
  const int count = kind == "io" ? 1 : UsableCpus();
  for (int number = 0; number < count; ++number) Start(folder);
  close(gate_[0]);
}

void Load::Start(const std::string& folder) {
  const pid_t parent = getpid();
  const pid_t process = fork();
  if (process < 0) {
    End();
    throw Fault(kExitRunFailed, std::string("the load cannot be started: ") + strerror(errno));
  }
  if (process > 0) {
    processes_.push_back(process);
    return;
  }
  // Nothing may let it outlive its parent: not a kill, and not a parent that has ended before this line.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  for (int stream = 0; stream < 3; ++stream) close(stream);  // whoever reads them waits for all who hold them
  close(gate_[1]);
  char byte;
  while (read(gate_[0], &byte, 1) < 0 && errno == EINTR) {
  }
  if (kind_ == "cpu") KeepCpuBusy();
  if (kind_ == "memory") KeepMemoryBusy();
  KeepDiskBusy(folder);
  _exit(1);
}

void Load::Begin() {
  if (gate_[1] >= 0) close(gate_[1]);
  gate_[1] = -1;
}

void Load::CheckRunning() const {
  for (const pid_t process : processes_) {
    if (waitpid(process, nullptr, WNOHANG) != 0) {
      throw Fault(kExitRunFailed, "the load \"" + kind_ + "\" ended by itself: the disk or the memory may be full");
    }
  }
}

void Load::End() {
  for (const pid_t process : processes_) kill(process, SIGKILL);
  for (const pid_t process : processes_) waitpid(process, nullptr, 0);
  processes_.clear();
}

Load::~Load() {
  End();
  Begin();
}

}  // namespace runner
