// What the threads of a pool do differently while other processes want the same CPUs: they spin
// less, they take turns, and they keep off each other's CPU. Measured in
// docs/decisions/0008-pieces-that-threads-take.md
#ifndef THREADS_NEIGHBOURS_H_
#define THREADS_NEIGHBOURS_H_

#include <sched.h>

#include <atomic>
#include <chrono>
#include <optional>

namespace edge {

// Measures how much of a CPU a thread gets of what it wants.
class CpuWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // The thread wanted no CPU in this time, or computed for somebody else.
  void SetAside(Clock::duration time) { aside_ += time; }

  // Whether other processes took much of the CPU in the window that ends now; nothing while it has not
  // ended.
  std::optional<bool> LostMuch(Clock::time_point now);

 private:
  Clock::time_point begin_{};
  std::chrono::nanoseconds used_{}, aside_{};
};

// What the threads of one pool know about other processes.
class Neighbours {
 public:
  using Clock = CpuWatch::Clock;

  // Whether a thread of the pool lost much of its CPU a short time ago.
  bool AreBusy(Clock::time_point now) const;

  // Each thread calls this between its jobs. Returns what its watch says.
  std::optional<bool> Look(CpuWatch& watch, Clock::time_point now);

 private:
  void Remember(Clock::time_point now);

  std::atomic<Clock::rep> busy_until_{0};  // written by any thread: the last one counts
  std::atomic<Clock::rep> memory_{0};
};

// The CPU of a launcher, off which workers keep while others are busy and while that helps it.
class LaunchersCpu {
 public:
  using Clock = CpuWatch::Clock;

  // The launcher calls this between its jobs.
  void Look(CpuWatch& watch, Neighbours& neighbours, Clock::time_point now);

  bool IsKeptFree() const { return kept_free_.load(std::memory_order_relaxed); }
  int number() const { return number_.load(std::memory_order_relaxed); }

 private:
  void Judge(bool lost_much, Clock::time_point now);

  std::atomic<bool> kept_free_{true};
  std::atomic<int> number_{-1};
  // The launcher's own.
  int lost_windows_ = 0;
  Clock::time_point together_until_{};
};

// Where a worker runs.
class WorkersCpus {
 public:
  // Leaves the launcher's CPU if the worker is on it. Goes where the system likes when there is no
  // reason any more.
  void Follow(const LaunchersCpu& launchers, bool busy);

 private:
  bool narrowed_ = false;
  cpu_set_t before_;
};

}  // namespace edge

#endif  // THREADS_NEIGHBOURS_H_
