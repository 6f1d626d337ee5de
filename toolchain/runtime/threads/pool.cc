// See pool.h. Linux only: affinity, and names of threads.
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace edge {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLooksBetweenYields = 64;
constexpr int kMostThreads = 1024;

thread_local ThreadPool* used = nullptr;
thread_local std::unique_ptr<ThreadPool> own;
// Whether this thread runs a task: what that launches, it runs itself.
thread_local bool within_task = false;

void Relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__ARM_ARCH_7A__)
  asm volatile("yield");
#endif
}

// Looks again and again, and lets others have the CPU in between.
template <typename Holds>
bool SpinUntil(Holds holds, Clock::time_point end) {
  while (true) {
    for (int look = 0; look < kLooksBetweenYields; ++look) {
      if (holds()) return true;
      Relax();
    }
    if (Clock::now() >= end) return holds();
    sched_yield();
  }
}

// The application's signals are for its own threads; what a fault of a kernel raises stays here.
class NoSignals {
 public:
  NoSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP}) {
      sigdelset(&blocked, fault);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

std::vector<int> PlaceOf(size_t worker, const PoolOptions& options) {
  return options.pinned && worker < options.cpus.size() ? std::vector<int>{options.cpus[worker]}
                                                        : options.cpus;
}

int RunAlone(FTVMParallelLambda lambda, void* data, int tasks) {
  TVMParallelGroupEnv env = {nullptr, tasks == 0 ? 1 : tasks};
  for (int task = 0; task < env.num_task; ++task) {
    if (lambda(task, &env, data) != 0) return -1;
  }
  return 0;
}

}  // namespace

void Barrier::Wait(int tasks) {
  // Arrivals are counted from the job's begin: those of this time are complete at the next multiple.
  const int64_t complete = (arrived_.fetch_add(1, std::memory_order_acq_rel) / tasks + 1) * tasks;
  SpinUntil(
      [&] { return arrived_.load(std::memory_order_acquire) >= complete || failed_.load(); },
      Clock::time_point::max());
}

ThreadPool::ThreadPool(const PoolOptions& options) {
  try {
    Start(options);
  } catch (...) {
    Stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Start(const PoolOptions& options) {
  const NoSignals none;
  const int workers = std::min(options.threads, kMostThreads) - 1;
  for (int worker = 1; worker <= workers; ++worker) {
    workers_.emplace_back([this, worker, spin = options.spin,
                           cpus = PlaceOf(static_cast<size_t>(worker), options)] {
      pthread_setname_np(pthread_self(), "edge-kernels");
      if (!cpus.empty()) StayOn(cpus);
      within_task = true;
      Work(worker, spin);
    });
  }
}

void ThreadPool::Stop() {
  {
    const std::lock_guard<std::mutex> lock(sleeping_);
    ended_.store(true);
    jobs_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Work(int worker, std::chrono::microseconds spin) {
  for (uint32_t seen = NextJob(0, spin); !ended_.load(); seen = NextJob(seen, spin)) {
    RunShare(worker);
    unfinished_.fetch_sub(1, std::memory_order_release);
  }
}

// A job's number is stored before the launcher looks for sleepers, and a sleeper is counted before
// it looks for the number: one of them sees the other.
uint32_t ThreadPool::NextJob(uint32_t seen, std::chrono::microseconds spin) {
  const auto is_new = [&] { return jobs_.load() != seen; };
  if (spin.count() <= 0 || !SpinUntil(is_new, Clock::now() + spin)) {
    std::unique_lock<std::mutex> lock(sleeping_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, is_new);
    sleepers_.fetch_sub(1);
  }
  return jobs_.load();
}

int ThreadPool::Launch(FTVMParallelLambda lambda, void* data, int tasks) {
  if (within_task || size() == 1) return RunAlone(lambda, data, tasks);
  const int all = tasks == 0 ? size() : tasks;
  barrier_.Reset();
  job_ = {lambda, data, {all <= size() ? &barrier_ : nullptr, all}};
  unfinished_.store(static_cast<int>(workers_.size()));
  jobs_.fetch_add(1);
  if (sleepers_.load() > 0) {
    { const std::lock_guard<std::mutex> lock(sleeping_); }
    wake_.notify_all();
  }
  within_task = true;
  RunShare(0);
  within_task = false;
  SpinUntil([this] { return unfinished_.load(std::memory_order_acquire) == 0; },
            Clock::time_point::max());
  return Outcome();
}

void ThreadPool::RunShare(int member) {
  for (int task = member; task < job_.env.num_task; task += size()) {
    if (job_.lambda(task, &job_.env, job_.data) == 0) continue;
    Fail(tvm::ffi::details::MoveFromSafeCallRaised());
    barrier_.GiveUp();
  }
}

void ThreadPool::Fail(tvm::ffi::Error error) {
  const std::lock_guard<std::mutex> lock(failing_);
  if (!error_) error_ = std::move(error);
}

int ThreadPool::Outcome() {
  if (!error_) return 0;
  tvm::ffi::details::SetSafeCallRaised(*error_);
  error_.reset();
  return -1;
}

int ThreadPool::UsualSize() {
  const char* asked = std::getenv("TVM_NUM_THREADS");
  if (asked != nullptr && std::atoi(asked) > 0) return std::min(std::atoi(asked), kMostThreads);
  cpu_set_t mask;
  return sched_getaffinity(0, sizeof(mask), &mask) == 0 ? CPU_COUNT(&mask) : 1;
}

ThreadPool& ThreadPool::Current() {
  if (used != nullptr) return *used;
  if (own == nullptr) {
    PoolOptions options;
    options.threads = UsualSize();
    SetOwn(options);
  }
  return *own;
}

void ThreadPool::SetOwn(const PoolOptions& options) {
  own.reset();  // before the new one, which may be for the same CPUs
  own = std::make_unique<ThreadPool>(options);
}

void StayOn(const std::vector<int>& cpus) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (int cpu : cpus) CPU_SET(cpu, &mask);
  sched_setaffinity(0, sizeof(mask), &mask);
}

UsePool::UsePool(ThreadPool* pool) : before_(used) { used = pool; }

UsePool::~UsePool() { used = before_; }

}  // namespace edge
