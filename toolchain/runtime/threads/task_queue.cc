// See task_queue.h.
#include "task_queue.h"

#include <utility>

#include "waiting.h"

namespace edge {

void TaskQueue::Share::Fill(uint32_t begin, uint32_t end) {
  rest_.store(uint64_t{end} << 32 | begin, std::memory_order_release);
}

// The next task if there is one. Who compares with an outdated value fails, or finds that it is the
// value again: then the task is one of the present job, and nobody else has it.
std::optional<uint32_t> TaskQueue::Share::Take() {
  uint64_t rest = rest_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(rest) < rest >> 32) {
    if (rest_.compare_exchange_weak(rest, rest + 1, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      return static_cast<uint32_t>(rest);
    }
  }
  return std::nullopt;
}

void TaskQueue::Fill(FTVMParallelLambda lambda, void* data, int tasks) {
  job_ = {lambda, data, {nullptr, tasks}};
  unfinished_.store(static_cast<uint32_t>(tasks), std::memory_order_relaxed);
  const uint64_t count = static_cast<uint64_t>(tasks), members = shares_.size();
  for (uint64_t member = 0; member < members; ++member) {
    shares_[member].Fill(static_cast<uint32_t>(member * count / members),
                         static_cast<uint32_t>((member + 1) * count / members));
  }
}

void TaskQueue::Finish(uint32_t count) {
  if (count == 0) return;
  const bool last = unfinished_.fetch_sub(count) == count;
  if (last && launcher_sleeps_.load()) WakeSleepers(unfinished_);
}

std::chrono::nanoseconds TaskQueue::Await(uint32_t count, std::chrono::microseconds spin,
                                          const Neighbours& neighbours) {
  using Clock = std::chrono::steady_clock;
  unfinished_.fetch_sub(count, std::memory_order_acq_rel);
  if (Spin([this] { return !IsBusy(); }, spin, neighbours)) return {};
  const Clock::time_point start = Clock::now();
  launcher_sleeps_.store(true);
  for (uint32_t rest = unfinished_.load(); rest != 0; rest = unfinished_.load()) {
    SleepWhile(unfinished_, rest);
  }
  launcher_sleeps_.store(false);
  return Clock::now() - start;
}

void TaskQueue::Fail(tvm::ffi::Error error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!error_) error_ = std::move(error);
}

int TaskQueue::Outcome() {
  if (!error_) return 0;
  tvm::ffi::details::SetSafeCallRaised(*error_);
  error_.reset();
  return -1;
}

void TaskQueue::Ask(Workspaces* workspaces) {
  const std::lock_guard<std::mutex> lock(mutex_);
  workspaces->Report(&needs_);
  has_grown_.store(true, std::memory_order_release);
}

}  // namespace edge
