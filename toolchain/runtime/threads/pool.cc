// See pool.h. Linux only: affinity, futexes, and names of threads.
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <utility>

#include "shared_pools.h"
#include "waiting.h"

namespace edge {
namespace {

using std::chrono::milliseconds;

constexpr int kMostThreads = 1024;

// While other processes are busy, a worker computes for this long at most before it sleeps. The system's time slices are 3 to
// 4 ms: a worker that stops in time is not stopped within a piece, for which all others would wait.
constexpr milliseconds kTurn{2};

thread_local CpuWatch watch;
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

}  // namespace

ThreadPool::ThreadPool(const PoolOptions& options)
    : spin_(options.spin),
      execute_(options.execute),
      context_(options.context),
      process_(CountForks()),
      members_(static_cast<size_t>(std::clamp(options.threads, 1, kMostThreads))) {
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
  for (size_t worker = 1; worker < members_.size(); ++worker) {
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
  const UseWorkspaces use(&members_[static_cast<size_t>(member)].workspaces);
  if (prepare_thread != nullptr) prepare_thread();
  ready_.fetch_add(1);
  WakeSleepers(ready_);
  IsWithinTask() = true;
  Work(member, options.pinned);
}

void ThreadPool::Stop() {
  if (IsOfAnotherProcess()) {
    // There is nobody to wait for. The list stays, since it can neither join nor forget its threads.
    static std::vector<std::vector<std::thread>>& lost = *new std::vector<std::vector<std::thread>>();
    lost.push_back(std::move(workers_));
    return;
  }
  ended_.store(true);
  Announce();
  room_.fetch_add(1);
  WakeSleepers(room_);
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::IsOfAnotherProcess() const { return process_ != CountForks(); }

TaskQueue* ThreadPool::TakeQueue() {
  const std::lock_guard<std::mutex> lock(queues_mutex_);
  if (!free_queues_.empty()) {
    TaskQueue* const queue = free_queues_.back();
    free_queues_.pop_back();
    return queue;
  }
  free_queues_.reserve(queues_.size() + 1);  // whoever gives one back must not fail
  queues_.push_back(std::make_unique<TaskQueue>(size(), newest_.load(), static_cast<int>(queues_.size())));
  newest_.store(queues_.back().get(), std::memory_order_release);
  return queues_.back().get();
}

void ThreadPool::GiveQueue(TaskQueue* queue) {
  if (IsOfAnotherProcess()) return;  // and its mutex may be locked for ever
  const std::lock_guard<std::mutex> lock(queues_mutex_);
  free_queues_.push_back(queue);
}

void ThreadPool::Work(int member, bool pinned) {
  for (uint32_t seen = NextJob(member, 0); !ended_.load(); seen = NextJob(member, seen)) HelpAll(member, pinned);
}

// Begins with another queue than other workers do, so that each of several launchers gets some.
void ThreadPool::HelpAll(int member, bool pinned) {
  TaskQueue* const newest = newest_.load(std::memory_order_acquire);
  if (newest == nullptr) return;
  const int first = member % (newest->number() + 1);
  for (const bool is_later : {false, true}) {
    for (TaskQueue* queue = newest; queue != nullptr; queue = queue->next()) {
      if ((queue->number() > first) == is_later && queue->IsBusy()) Help(queue, member, pinned);
    }
  }
}

void ThreadPool::Help(TaskQueue* queue, int member, bool pinned) {
  if (!pinned) workers_cpus.Follow(queue->launchers_cpu(), neighbours_.AreBusy(Clock::now()));
  Member& self = members_[static_cast<size_t>(member)];
  uint32_t count = 0;
  {
    const std::lock_guard<std::mutex> working(self.working);
    count = queue->Run(member, [&] { return IsTurnOver() || !HasRoom(member); });
    if (self.workspaces.HasGrown()) queue->Ask(&self.workspaces);
  }
  queue->Finish(count);
}

// Whether a worker has to leave the rest to the others.
bool ThreadPool::IsTurnOver() const {
  const Clock::time_point now = Clock::now();
  return now - turn > kTurn && neighbours_.AreBusy(now);
}

// Each model that runs has a thread of the application's that computes: beside several of them the
// last workers have no CPU.
bool ThreadPool::HasRoom(int member) const {
  return member <= size() - std::max(1, runs_.load(std::memory_order_relaxed));
}

// A job wakes those who wait here only if fewer models run than before: not each of its kernels.
void ThreadPool::AwaitRoom(int member) {
  const Clock::time_point start = Clock::now();
  outside_.fetch_add(1);
  while (true) {
    const uint32_t number = room_.load();
    if (HasRoom(member) || ended_.load()) break;
    SleepWhile(room_, number);
  }
  outside_.fetch_sub(1);
  turn = Clock::now();
  watch.SetAside(turn - start);
}

// A job's number is stored before the launcher looks for sleepers, and a sleeper is counted before
// it looks for the number: one of them sees the other.
uint32_t ThreadPool::NextJob(int member, uint32_t seen) {
  const auto is_new = [&] { return jobs_.load(std::memory_order_acquire) != seen; };
  do {
    if (!HasRoom(member)) AwaitRoom(member);
    if (IsTurnOver() || !Spin([&] { return is_new() || !HasRoom(member); }, spin_, neighbours_)) {
      const Clock::time_point start = Clock::now();
      sleepers_.fetch_add(1);
      while (jobs_.load() == seen) SleepWhile(jobs_, seen);
      sleepers_.fetch_sub(1);
      turn = Clock::now();
      watch.SetAside(turn - start);
    }
  } while (!ended_.load() && !(is_new() && HasRoom(member)));
  neighbours_.Look(watch, Clock::now());
  return jobs_.load();
}

void ThreadPool::Announce() {
  jobs_.fetch_add(1);
  if (sleepers_.load() > 0) WakeSleepers(jobs_);
  if (outside_.load() < std::max(1, runs_.load())) return;
  room_.fetch_add(1);
  WakeSleepers(room_);
}

// Between two jobs of a queue: no worker is to ask for memory at its first task of a later run.
// Returns whether all workers could be given it; one that works for another queue cannot.
bool ThreadPool::Provide(const Workspaces::Needs& needs) {
  bool is_complete = true;
  for (size_t worker = 1; worker < members_.size(); ++worker) {
    std::unique_lock<std::mutex> idle(members_[worker].working, std::defer_lock);
    // One that only looks for tasks soon has looked.
    if (SpinUntil([&idle] { return idle.try_lock(); }, Clock::now() + kLeastSpin)) {
      members_[worker].workspaces.Provide(needs);
    } else {
      is_complete = false;
    }
  }
  return is_complete;
}

int ThreadPool::UsualSize() {
  const char* asked = std::getenv("TVM_NUM_THREADS");
  if (asked != nullptr && std::atoi(asked) > 0) return std::min(std::atoi(asked), kMostThreads);
  cpu_set_t mask;
  return sched_getaffinity(0, sizeof(mask), &mask) == 0 ? CPU_COUNT(&mask) : 1;
}

void StayOn(const std::vector<int>& cpus) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (int cpu : cpus) CPU_SET(cpu, &mask);
  sched_setaffinity(0, sizeof(mask), &mask);
}

}  // namespace edge
