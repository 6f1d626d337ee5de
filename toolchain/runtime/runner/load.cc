// See load.h.
#include "load.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "../model/fault.h"
#include "child.h"

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
  const auto work = [&] {
    close(gate_[1]);
    AwaitClosed(gate_[0]);
    if (kind_ == "cpu") KeepCpuBusy();
    if (kind_ == "memory") KeepMemoryBusy();
    KeepDiskBusy(folder);
    return 1;
  };
  try {
    processes_.push_back(StartChild("the load", work));
  } catch (const Fault&) {
    End();
    throw;
  }
}

void Load::Begin() {
  if (gate_[1] >= 0) close(gate_[1]);
  gate_[1] = -1;
}

void Load::CheckRunning() const {
  for (const pid_t process : processes_) {
    if (!IsRunning(process)) {
      throw Fault(kExitRunFailed, "the load \"" + kind_ + "\" ended by itself: the disk or the memory may be full");
    }
  }
}

void Load::End() {
  for (const pid_t process : processes_) EndChild(process);
  processes_.clear();
}

Load::~Load() {
  End();
  Begin();
}

}  // namespace runner
