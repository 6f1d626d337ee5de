// The tasks of one launcher's kernel, which the threads of a pool take.
#ifndef THREADS_TASK_QUEUE_H_
#define THREADS_TASK_QUEUE_H_

#include <tvm/ffi/error.h>
#include <tvm/runtime/c_backend_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "../memory/workspaces.h"
#include "neighbours.h"

namespace edge {

// One kernel at a time. Member 0 is the launcher, the others are workers of the pool.
class TaskQueue {
 public:
  // `next` and `number` are that of another queue of the pool, and how many there were before.
  TaskQueue(int members, TaskQueue* next, int number)
      : next_(next), number_(number), shares_(static_cast<size_t>(members)) {}

  TaskQueue* next() const { return next_; }
  int number() const { return number_; }

  // Offers the tasks of a kernel.
  void Fill(FTVMParallelLambda lambda, void* data, int tasks);

  // Whether a task may be left, or unfinished.
  bool IsBusy() const { return unfinished_.load(std::memory_order_acquire) != 0; }

  // Takes the member's own tasks, then those that others have not begun, until `ends` holds. Returns how many.
  template <typename Ends>
  uint32_t Run(int member, Ends ends);

  // Counts tasks as done. Each that Run has returned is counted once.
  void Finish(uint32_t count);

  // The launcher's: counts its tasks and waits for the others. Returns how long it slept.
  std::chrono::nanoseconds Await(uint32_t count, std::chrono::microseconds spin, const Neighbours& neighbours);

  // Of the kernel: 0, or -1 with the first task's error raised as TVM's functions raise it.
  int Outcome();

  // What a worker's tasks have asked for, so that all members get it.
  void Ask(Workspaces* workspaces);
  bool HasGrown() const { return has_grown_.load(std::memory_order_acquire); }

  // Gives all members what tasks have asked for. `give` is called with the needs, and returns whether it could.
  template <typename Give>
  void Settle(Give give);

  LaunchersCpu& launchers_cpu() { return launchers_cpu_; }

 private:
  struct Job {
    FTVMParallelLambda lambda = nullptr;
    void* data = nullptr;
    TVMParallelGroupEnv env = {};
  };

  // Tasks that nobody has begun yet. Each member has a share that it takes from first, so that in
  // one kernel after the other it works on the same part of the data.
  class alignas(64) Share {
   public:
    void Fill(uint32_t begin, uint32_t end);
    std::optional<uint32_t> Take();

   private:
    std::atomic<uint64_t> rest_{0};  // the next task, and in the upper half the end
  };

  void Fail(tvm::ffi::Error error);

  TaskQueue* const next_;
  const int number_;
  std::vector<Share> shares_;
  Job job_;  // whoever has taken a task may read it
  std::mutex mutex_;
  std::optional<tvm::ffi::Error> error_;  // the first one of the job
  Workspaces::Needs needs_;
  std::atomic<bool> has_grown_{false};
  LaunchersCpu launchers_cpu_;
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  std::atomic<bool> launcher_sleeps_{false};
};

template <typename Ends>
uint32_t TaskQueue::Run(int member, Ends ends) {
  const size_t all = shares_.size();
  uint32_t count = 0;
  for (size_t other = 0; other < all; ++other) {
    Share& share = shares_[(static_cast<size_t>(member) + other) % all];
    while (!ends()) {
      const auto task = share.Take();
      if (!task) break;
      ++count;
      // The launcher stays until all are finished, so whoever has taken one finds the record of its job.
      if (job_.lambda(static_cast<int>(*task), &job_.env, job_.data) == 0) continue;
      Fail(tvm::ffi::details::MoveFromSafeCallRaised());
    }
  }
  return count;
}

template <typename Give>
void TaskQueue::Settle(Give give) {
  const std::lock_guard<std::mutex> lock(mutex_);
  has_grown_.store(!give(needs_), std::memory_order_release);
}

}  // namespace edge

#endif  // THREADS_TASK_QUEUE_H_
