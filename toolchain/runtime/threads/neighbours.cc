// See neighbours.h. Linux only: affinity and a thread's CPU time.
#include "neighbours.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace edge {
namespace {

using std::chrono::milliseconds;

// Other processes disturb a thread if they take a quarter of the CPU from it for some time slices.
// Short and rare interruptions do not count: every system has them.
constexpr milliseconds kWindow{20};
constexpr int kLostShare = 4;
// For how long the pool remembers that: longer each time if it is disturbed again right afterwards.
constexpr milliseconds kMemory{100}, kLongestMemory{1600}, kAgain{100};
// If keeping apart does not help the launcher in so many windows, the threads are left together.
constexpr int kTrial = 3;
constexpr milliseconds kTogether{2000};

std::chrono::nanoseconds CpuTime() {
  timespec used;
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) != 0) return {};
  return std::chrono::seconds{used.tv_sec} + std::chrono::nanoseconds{used.tv_nsec};
}

// Without sched_getcpu, which Android's oldest libraries lack.
int CurrentCpu() {
  unsigned cpu = 0;
  return syscall(SYS_getcpu, &cpu, nullptr, nullptr) == 0 ? static_cast<int>(cpu) : -1;
}

}  // namespace

std::optional<bool> CpuWatch::LostMuch(Clock::time_point now) {
  const auto window = now - begin_;
  if (window < kWindow) return std::nullopt;
  const std::chrono::nanoseconds used = CpuTime(), lost = window - (used - used_) - aside_;
  const bool is_first = begin_ == Clock::time_point{};
  begin_ = now;
  used_ = used;
  aside_ = {};
  return !is_first && lost * kLostShare > window;
}

bool Neighbours::AreBusy(Clock::time_point now) const {
  return now.time_since_epoch().count() < busy_until_.load(std::memory_order_relaxed);
}

std::optional<bool> Neighbours::Look(CpuWatch& watch, Clock::time_point now) {
  const std::optional<bool> lost_much = watch.LostMuch(now);
  if (lost_much.value_or(false)) Remember(now);
  return lost_much;
}

void Neighbours::Remember(Clock::time_point now) {
  const Clock::time_point until{Clock::duration{busy_until_.load(std::memory_order_relaxed)}};
  Clock::duration memory{memory_.load(std::memory_order_relaxed)};
  if (now >= until) {
    memory = now < until + kAgain ? std::min<Clock::duration>(2 * memory, kLongestMemory) : Clock::duration{kMemory};
    memory_.store(memory.count(), std::memory_order_relaxed);
  }
  busy_until_.store((now + memory).time_since_epoch().count(), std::memory_order_relaxed);
}

void LaunchersCpu::Look(CpuWatch& watch, Neighbours& neighbours, Clock::time_point now) {
  if (const auto lost_much = neighbours.Look(watch, now)) Judge(*lost_much, now);
  if (neighbours.AreBusy(now)) number_.store(CurrentCpu(), std::memory_order_relaxed);
}

// The system wakes a worker on the launcher's CPU if another process is busy on the worker's: then
// both share one CPU, and the other process has one for itself. Apart from the launcher a worker gets
// half of that second CPU. But where all CPUs are busy, the launcher loses as much as before, and
// together both get a whole CPU for themselves, at the same time: then they are left together.
void LaunchersCpu::Judge(bool lost_much, Clock::time_point now) {
  lost_windows_ = lost_much ? lost_windows_ + 1 : 0;
  if (!IsKeptFree()) {
    if (now < together_until_) return;
    lost_windows_ = 0;
    kept_free_.store(true, std::memory_order_relaxed);
  } else if (lost_windows_ > kTrial) {
    together_until_ = now + kTogether;
    kept_free_.store(false, std::memory_order_relaxed);
  }
}

void WorkersCpus::Follow(const LaunchersCpu& launchers, bool busy) {
  if (!busy || !launchers.IsKeptFree()) {
    if (narrowed_) sched_setaffinity(0, sizeof(before_), &before_);
    narrowed_ = false;
    return;
  }
  const int cpu = launchers.number();
  if (cpu < 0 || CurrentCpu() != cpu) return;
  if (!narrowed_ && sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
  cpu_set_t others = before_;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) > 0) narrowed_ = sched_setaffinity(0, sizeof(others), &others) == 0 || narrowed_;
}

}  // namespace edge
