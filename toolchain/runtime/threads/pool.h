// The threads that run a model's kernels, in place of TVM's own pool: they belong to whoever made
// them and end with it, they sleep when there is nothing to do, and they read no environment.
//
// A kernel is cut into more pieces than there are threads, and a piece is computed by whichever
// thread takes it. The thread that launches takes what nobody else has begun, so it never waits for
// one that the system has given no CPU. docs/decisions/0008-pieces-that-threads-take.md
#ifndef THREADS_POOL_H_
#define THREADS_POOL_H_

#include <tvm/ffi/error.h>
#include <tvm/runtime/c_backend_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "../memory/workspaces.h"
#include "neighbours.h"

namespace edge {

// Until a worker sleeps: longer than what lies between two kernels, short for a battery.
constexpr std::chrono::microseconds kUsualSpin{1000};

// Pieces of a kernel for each thread. The compiler cuts loops into as many equal parts for each of
// the board's cores: toolchain/backends/cpu/lowering.py.
constexpr int kPiecesPerThread = 4;

// Calls task(data, i) for each i below count, on any threads, and returns when all have returned.
using Executor = void (*)(void* context, void (*task)(void* data, int32_t number), void* data, int32_t count);

struct PoolOptions {
  int threads = 1;        // with the one that launches
  std::vector<int> cpus;  // empty: where the threads run is left as it is
  bool pinned = false;    // each worker on a CPU of its own, or all workers on all of `cpus`
  std::chrono::microseconds spin = kUsualSpin;
  int priority = 0;            // of the workers: 0 as whoever makes them, or that of SCHED_FIFO
  Executor execute = nullptr;  // whose threads compute instead of workers
  void* context = nullptr;
};

// One thread at a time may launch. Its workers are the others; they are started at once.
class ThreadPool {
 public:
  // Throws std::system_error if the system gives no threads, or not with that priority.
  explicit ThreadPool(const PoolOptions& options);
  ~ThreadPool();  // waits for the workers' end
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(shares_.size()); }

  // Calls lambda(task, ...) for each task, on this thread or a worker; 0 tasks stand for some a
  // thread. Returns 0, or -1 with the first task's error raised as TVM's functions raise it.
  int Launch(FTVMParallelLambda lambda, void* data, int tasks);

  // The pool that this thread's kernels use: that of the innermost UsePool, else one of the thread's
  // own.
  static ThreadPool& Current();

  // As many as this process may use CPUs, or as $TVM_NUM_THREADS says.
  static int UsualSize();

  // Replaces the thread's own pool.
  static void SetOwn(const PoolOptions& options);

 private:
  using Clock = std::chrono::steady_clock;

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

  void Start(const PoolOptions& options);
  void Stop();
  void Begin(int member, const PoolOptions& options);
  void Work(int member, bool pinned);
  static void RunForExecutor(void* pool, int32_t number);
  uint32_t NextJob(uint32_t seen);
  bool IsTurnOver() const;
  void Announce();
  uint32_t RunTasks(int member);
  void FinishTasks(uint32_t count);
  void AwaitTasks();
  void MatchWorkspaces();
  template <typename Holds>
  bool Spin(Holds holds);
  void Fail(tvm::ffi::Error error);
  int Outcome();

  friend class UsePool;

  const std::chrono::microseconds spin_;
  const Executor execute_;
  void* const context_;
  std::vector<Share> shares_;  // the launcher's, and one for each worker
  std::vector<Workspaces> workspaces_;  // the same
  std::vector<std::thread> workers_;
  Job job_;  // whoever has taken a task may read it
  std::mutex failing_;
  std::optional<tvm::ffi::Error> error_;  // the first one of the job

  // What the threads watch, each on a cache line of its own.
  alignas(64) std::atomic<uint32_t> jobs_{0};  // a new number is a new job, or the end
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<uint32_t> ready_{0};  // workers that have started
  std::atomic<bool> launcher_sleeps_{false};
  std::atomic<bool> ended_{false};
  Neighbours neighbours_;
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
  const UseWorkspaces workspaces_;
};

}  // namespace edge

#endif  // THREADS_POOL_H_
