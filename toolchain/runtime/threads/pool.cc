// See pool.h. Linux only: affinity, futexes, and names of threads.
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <memory>
#include <system_error>

namespace edge {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kLooksBetweenClocks = 64;
constexpr int kMostThreads = 1024;

// How long a thread looks for what it waits for while other processes are busy: about what it takes
// to wake a thread that sleeps.
constexpr microseconds kLeastSpin{50};
// Then a worker computes for this long at most before it sleeps. The system's time slices are 3 to
// 4 ms: a worker that stops in time is not stopped within a piece, for which all others would wait.
constexpr milliseconds kTurn{2};

thread_local ThreadPool* used = nullptr;
thread_local std::unique_ptr<ThreadPool> own;

void Relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__ARM_ARCH_7A__)
  asm volatile("yield");
#elif defined(__riscv)
  asm volatile(".4byte 0x0100000f");  // PAUSE, a hint that processors without Zihintpause ignore
#endif
}

template <typename Holds>
bool SpinUntil(Holds holds, std::chrono::steady_clock::time_point end) {
  while (true) {
    for (int look = 0; look < kLooksBetweenClocks; ++look) {
      if (holds()) return true;
      Relax();
    }
    if (std::chrono::steady_clock::now() >= end) return holds();
  }
}

void SleepWhile(std::atomic<uint32_t>& word, uint32_t value) {
  static_assert(sizeof(word) == sizeof(uint32_t), "a futex is a plain word");
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void WakeSleepers(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

thread_local CpuWatch watch;
// When this thread last left Launch.
thread_local CpuWatch::Clock::time_point left{};
// When this worker's turn began.
thread_local CpuWatch::Clock::time_point turn{};
thread_local WorkersCpus workers_cpus;

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

// What kernels need of a thread's stack is there before the first one runs.
constexpr size_t kStack = 32 << 10, kPage = 4096;

__attribute__((noinline)) void TouchStack() {
  char stack[kStack];
  for (size_t at = 0; at < kStack; at += kPage) stack[at] = 0;
  asm volatile("" : : "r"(stack) : "memory");  // otherwise a compiler leaves all of it out
}

// Threads are made with the caller's priority, so that one that is not allowed is an error of the caller's.
class Priority {
 public:
  explicit Priority(int priority) {
    if (priority == 0) return;
    pthread_getschedparam(pthread_self(), &policy_, &before_);
    sched_param wanted = {};
    wanted.sched_priority = priority;
    const int failed = pthread_setschedparam(pthread_self(), SCHED_FIFO, &wanted);
    if (failed != 0) throw std::system_error(failed, std::generic_category(), "the priority of the threads");
    is_set_ = true;
  }
  ~Priority() {
    if (is_set_) pthread_setschedparam(pthread_self(), policy_, &before_);
  }

 private:
  bool is_set_ = false;
  int policy_ = 0;
  sched_param before_ = {};
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

void ThreadPool::Share::Fill(uint32_t begin, uint32_t end) {
  rest_.store(uint64_t{end} << 32 | begin, std::memory_order_release);
}

// The next task if there is one. Who compares with an outdated value fails, or finds that it is the
// value again: then the task is one of the present job, and nobody else has it.
std::optional<uint32_t> ThreadPool::Share::Take() {
  uint64_t rest = rest_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(rest) < rest >> 32) {
    if (rest_.compare_exchange_weak(rest, rest + 1, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      return static_cast<uint32_t>(rest);
    }
  }
  return std::nullopt;
}

ThreadPool::ThreadPool(const PoolOptions& options)
    : spin_(options.spin),
      execute_(options.execute),
      context_(options.context),
      shares_(static_cast<size_t>(std::clamp(options.threads, 1, kMostThreads))),
      workspaces_(shares_.size()) {
  try {
    Start(options);
  } catch (...) {
    Stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Start(const PoolOptions& options) {
  if (execute_ != nullptr) return;
  const NoSignals none;
  const Priority priority(options.priority);
  for (size_t worker = 1; worker < shares_.size(); ++worker) {
    workers_.emplace_back([this, worker, options] { Begin(static_cast<int>(worker), options); });
  }
  // What a thread takes from the system at its start is no later run's.
  const uint32_t all = static_cast<uint32_t>(workers_.size());
  for (uint32_t count = ready_.load(); count < all; count = ready_.load()) SleepWhile(ready_, count);
}

void ThreadPool::Begin(int member, const PoolOptions& options) {
  pthread_setname_np(pthread_self(), "edge-kernels");
  const std::vector<int> cpus = PlaceOf(static_cast<size_t>(member), options);
  if (!cpus.empty()) StayOn(cpus);
  TouchStack();
  const UseWorkspaces use(&workspaces_[static_cast<size_t>(member)]);
  if (prepare_thread != nullptr) prepare_thread();
  ready_.fetch_add(1);
  WakeSleepers(ready_);
  IsWithinTask() = true;
  Work(member, options.pinned);
}

void ThreadPool::Stop() {
  ended_.store(true);
  Announce();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Work(int member, bool pinned) {
  for (uint32_t seen = NextJob(0); !ended_.load(); seen = NextJob(seen)) {
    if (!pinned) workers_cpus.Follow(neighbours_, neighbours_.AreBusy(Clock::now()));
    FinishTasks(RunTasks(member));
  }
}

// Whether a worker has to leave the rest to the others.
bool ThreadPool::IsTurnOver() const {
  const Clock::time_point now = Clock::now();
  return now - turn > kTurn && neighbours_.AreBusy(now);
}

// A job's number is stored before the launcher looks for sleepers, and a sleeper is counted before
// it looks for the number: one of them sees the other.
uint32_t ThreadPool::NextJob(uint32_t seen) {
  if (IsTurnOver() || !Spin([&] { return jobs_.load(std::memory_order_acquire) != seen; })) {
    const Clock::time_point start = Clock::now();
    sleepers_.fetch_add(1);
    while (jobs_.load() == seen) SleepWhile(jobs_, seen);
    sleepers_.fetch_sub(1);
    turn = Clock::now();
    watch.SetAside(turn - start);
  }
  neighbours_.LookAsWorker(watch, Clock::now());
  return jobs_.load();
}

void ThreadPool::Announce() {
  jobs_.fetch_add(1);
  if (sleepers_.load() > 0) WakeSleepers(jobs_);
}

int ThreadPool::Launch(FTVMParallelLambda lambda, void* data, int tasks) {
  if (IsWithinTask() || size() == 1) return RunAlone(lambda, data, tasks);
  const Clock::time_point start = Clock::now();
  watch.SetAside(start - left);
  neighbours_.LookAsLauncher(watch, start);
  const int all = tasks == 0 ? size() * kPiecesPerThread : tasks;
  job_ = {lambda, data, {nullptr, all}};
  unfinished_.store(static_cast<uint32_t>(all), std::memory_order_relaxed);
  const uint64_t count = static_cast<uint64_t>(all), members = shares_.size();
  for (uint64_t member = 0; member < members; ++member) {
    shares_[member].Fill(static_cast<uint32_t>(member * count / members),
                         static_cast<uint32_t>((member + 1) * count / members));
  }
  if (execute_ != nullptr) {
    execute_(context_, &RunForExecutor, this, size());
  } else {
    Announce();
  }
  IsWithinTask() = true;
  const uint32_t done = RunTasks(0);
  IsWithinTask() = false;
  unfinished_.fetch_sub(done, std::memory_order_acq_rel);
  AwaitTasks();
  MatchWorkspaces();
  left = Clock::now();
  return Outcome();
}

// Each call takes whatever tasks there are, from its own share first. So a call too few or too late
// changes nothing but the time.
void ThreadPool::RunForExecutor(void* pool, int32_t number) {
  auto* const self = static_cast<ThreadPool*>(pool);
  const bool before = IsWithinTask();
  IsWithinTask() = true;
  self->FinishTasks(self->RunTasks(std::clamp(number, 0, self->size() - 1)));
  IsWithinTask() = before;
}

// A thread that has computed no part of a kernel so far is to find its memory there when it does.
void ThreadPool::MatchWorkspaces() {
  Workspaces& own = Workspaces::Current();
  bool has_grown = own.HasGrown();
  for (const Workspaces& each : workspaces_) has_grown = has_grown || each.HasGrown();
  if (!has_grown || execute_ != nullptr) return;
  try {
    for (const Workspaces& each : workspaces_) own.Match(each);
    for (Workspaces& each : workspaces_) {
      each.Match(own);
      each.Settle();
    }
    own.Settle();
  } catch (const std::bad_alloc&) {  // whoever needs it will ask again
  }
}

// Takes the member's own tasks, then those that others have not begun. Returns how many. The
// launcher stays until all are finished, so whoever has taken one finds the record of its job.
uint32_t ThreadPool::RunTasks(int member) {
  uint32_t count = 0;
  for (int other = 0; other < size(); ++other) {
    Share& share = shares_[static_cast<size_t>((member + other) % size())];
    while (member == 0 || !IsTurnOver()) {
      const auto task = share.Take();
      if (!task) break;
      ++count;
      if (job_.lambda(static_cast<int>(*task), &job_.env, job_.data) == 0) continue;
      Fail(tvm::ffi::details::MoveFromSafeCallRaised());
    }
  }
  return count;
}

void ThreadPool::FinishTasks(uint32_t count) {
  if (count == 0) return;
  const bool last = unfinished_.fetch_sub(count) == count;
  if (last && launcher_sleeps_.load()) WakeSleepers(unfinished_);
}

void ThreadPool::AwaitTasks() {
  if (Spin([this] { return unfinished_.load(std::memory_order_acquire) == 0; })) return;
  const Clock::time_point start = Clock::now();
  launcher_sleeps_.store(true);
  for (uint32_t rest = unfinished_.load(); rest != 0; rest = unfinished_.load()) {
    SleepWhile(unfinished_, rest);
  }
  launcher_sleeps_.store(false);
  watch.SetAside(Clock::now() - start);
}

// Where other processes want the CPUs, whoever spins uses up the time that it would need as soon as
// there is work; and the CPU of one that sleeps is free for a thread of ours that waits for one.
template <typename Holds>
bool ThreadPool::Spin(Holds holds) {
  const Clock::time_point start = Clock::now();
  if (SpinUntil(holds, start + std::min(kLeastSpin, spin_))) return true;
  return !neighbours_.AreBusy(Clock::now()) && SpinUntil(holds, start + spin_);
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

UsePool::UsePool(ThreadPool* pool) : before_(used), workspaces_(&pool->workspaces_[0]) { used = pool; }

UsePool::~UsePool() { used = before_; }

}  // namespace edge
