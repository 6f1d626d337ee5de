// The threads that run a model's kernels, in place of TVM's own pool: they belong to whoever made
// them and end with it, they sleep when there is nothing to do, and they read no environment.
#ifndef THREADS_POOL_H_
#define THREADS_POOL_H_

#include <tvm/ffi/error.h>
#include <tvm/runtime/c_backend_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace edge {

// Until a worker sleeps: longer than what lies between two kernels, short for a battery.
constexpr std::chrono::microseconds kUsualSpin{1000};

struct PoolOptions {
  int threads = 1;        // with the one that launches
  std::vector<int> cpus;  // empty: where the threads run is left as it is
  bool pinned = false;    // each worker on a CPU of its own, or all workers on all of `cpus`
  std::chrono::microseconds spin = kUsualSpin;
};

// Where the tasks of one job wait for each other. Each of them has a thread of its own.
class Barrier {
 public:
  void Reset() {
    arrived_.store(0);
    failed_.store(false);
  }
  // A task that failed arrives nowhere any more: the others go on, and the job fails.
  void GiveUp() { failed_.store(true); }
  void Wait(int tasks);

 private:
  alignas(64) std::atomic<int64_t> arrived_{0};
  std::atomic<bool> failed_{false};
};

// One thread at a time may launch. Its workers are the others; they are started at once.
class ThreadPool {
 public:
  // Throws std::system_error if the system gives no threads.
  explicit ThreadPool(const PoolOptions& options);
  ~ThreadPool();  // waits for the workers' end
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls lambda(task, ...) for each task, this thread's share on this thread; 0 tasks stand for one
  // a thread. Returns 0, or -1 with the first task's error raised as TVM's functions raise it.
  int Launch(FTVMParallelLambda lambda, void* data, int tasks);

  // The pool that this thread's kernels use: that of the innermost UsePool, else one of the thread's
  // own.
  static ThreadPool& Current();

  // As many as this process may use CPUs, or as $TVM_NUM_THREADS says.
  static int UsualSize();

  // Replaces the thread's own pool.
  static void SetOwn(const PoolOptions& options);

 private:
  struct Job {
    FTVMParallelLambda lambda = nullptr;
    void* data = nullptr;
    TVMParallelGroupEnv env = {};
  };

  void Start(const PoolOptions& options);
  void Stop();
  void Work(int worker, std::chrono::microseconds spin);
  uint32_t NextJob(uint32_t seen, std::chrono::microseconds spin);
  void RunShare(int member);
  void Fail(tvm::ffi::Error error);
  int Outcome();

  std::vector<std::thread> workers_;
  Job job_;
  Barrier barrier_;  // of the job, if each of its tasks has a thread
  std::mutex failing_;
  std::optional<tvm::ffi::Error> error_;  // the first one of the job

  std::mutex sleeping_;
  std::condition_variable wake_;
  // What the threads watch, each on a cache line of its own.
  alignas(64) std::atomic<uint32_t> jobs_{0};  // a new number is a new job, or the end
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> ended_{false};
};

// Leaves this thread, and those that it starts from now on, to some CPUs. One that went away leaves
// it where the system puts it.
void StayOn(const std::vector<int>& cpus);

// Has this thread's kernels use a pool for the time of a scope.
class UsePool {
 public:
  explicit UsePool(ThreadPool* pool);
  ~UsePool();
  UsePool(const UsePool&) = delete;
  UsePool& operator=(const UsePool&) = delete;

 private:
  ThreadPool* before_;
};

}  // namespace edge

#endif  // THREADS_POOL_H_
