// The threads that run models' kernels, in place of TVM's own pool: they belong to whoever made
// them and end with it, they sleep when there is nothing to do, and they read no environment.
//
// A kernel is cut into more pieces than there are threads, and a piece is computed by whichever
// thread takes it. The thread that launches takes what nobody else has begun, so it never waits for
// one that the system has given no CPU. docs/decisions/0008-pieces-that-threads-take.md
//
// Several models may have one pool: each launches from a queue of its own (launcher.h), and the
// workers take from all of them. docs/decisions/0015-one-pool-for-several-models.md
#ifndef THREADS_POOL_H_
#define THREADS_POOL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "../memory/workspaces.h"
#include "neighbours.h"
#include "task_queue.h"

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

// The workers are all threads but one, since each launcher computes, too. They are started at once.
class ThreadPool {
 public:
  // Throws std::system_error if the system gives no threads, or not with that priority.
  explicit ThreadPool(const PoolOptions& options);
  ~ThreadPool();  // waits for the workers' end
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(members_.size()); }

  // Whether the process is a fork of the one whose threads these are: then they do not exist here.
  bool IsOfAnotherProcess() const;

  // As many as this process may use CPUs, or as $TVM_NUM_THREADS says.
  static int UsualSize();

 private:
  using Clock = std::chrono::steady_clock;

  // A thread of the pool; the first one is unused, since launchers have their own memory.
  struct Member {
    std::mutex working;  // held while it runs tasks
    Workspaces workspaces;
  };

  friend class Launcher;
  friend class UseLauncher;

  // For a launcher: a queue that no other one has.
  TaskQueue* TakeQueue();
  void GiveQueue(TaskQueue* queue);

  void Start(const PoolOptions& options);
  void Stop();
  void Begin(int member, const PoolOptions& options);
  void Work(int member, bool pinned);
  void HelpAll(int member, bool pinned);
  void Help(TaskQueue* queue, int member, bool pinned);
  uint32_t NextJob(int member, uint32_t seen);
  bool HasRoom(int member) const;
  void AwaitRoom(int member);
  bool IsTurnOver() const;
  void Announce();
  bool Provide(const Workspaces::Needs& needs);

  const std::chrono::microseconds spin_;
  const Executor execute_;
  void* const context_;
  const uint32_t process_;  // how many forks there were before
  std::vector<Member> members_;
  std::vector<std::thread> workers_;

  std::mutex queues_mutex_;
  std::vector<std::unique_ptr<TaskQueue>> queues_;  // all of them: none ends before the pool
  std::vector<TaskQueue*> free_queues_;
  std::atomic<TaskQueue*> newest_{nullptr};  // leads to the others

  // What the threads watch, each on a cache line of its own.
  alignas(64) std::atomic<uint32_t> jobs_{0};  // a new number is a new job, or the end
  alignas(64) std::atomic<int> sleepers_{0};   // that a new job wakes
  alignas(64) std::atomic<int> runs_{0};       // models that run now
  std::atomic<int> outside_{0};                // workers without a CPU beside the launchers
  std::atomic<uint32_t> room_{0};              // a new number wakes these
  std::atomic<uint32_t> ready_{0};             // workers that have started
  std::atomic<bool> ended_{false};
  Neighbours neighbours_;
};

// Leaves this thread, and those that it starts from now on, to some CPUs. One that went away leaves
// it where the system puts it.
void StayOn(const std::vector<int>& cpus);

}  // namespace edge

#endif  // THREADS_POOL_H_
