// Launches the kernels of a model on a pool.
#ifndef THREADS_LAUNCHER_H_
#define THREADS_LAUNCHER_H_

#include <tvm/runtime/c_backend_api.h>

#include <memory>

#include "pool.h"

namespace edge {

// One thread at a time may launch; launchers of one pool may do so at the same time.
class Launcher {
 public:
  explicit Launcher(std::shared_ptr<ThreadPool> pool);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  int size() const { return pool_->size(); }

  // Calls lambda(task, ...) for each task, on this thread or a worker; 0 tasks stand for some a
  // thread. Returns 0, or -1 with the first task's error raised as TVM's functions raise it.
  int Launch(FTVMParallelLambda lambda, void* data, int tasks);

  // That of this thread's kernels: of the innermost UseLauncher, else one of the thread's own.
  static Launcher& Current();

  // Replaces the thread's own one, with a pool of its own.
  static void SetOwn(const PoolOptions& options);

 private:
  static void RunForExecutor(void* launcher, int32_t number);
  void Settle();

  friend class UseLauncher;

  const std::shared_ptr<ThreadPool> pool_;
  TaskQueue* const queue_;
  Workspaces workspaces_;
};

// Has this thread's kernels use a launcher for the time of a scope, which is a run of a model.
class UseLauncher {
 public:
  explicit UseLauncher(Launcher* launcher);
  ~UseLauncher();
  UseLauncher(const UseLauncher&) = delete;
  UseLauncher& operator=(const UseLauncher&) = delete;

 private:
  Launcher* const before_;
  ThreadPool* const pool_;
  const UseWorkspaces workspaces_;
};

}  // namespace edge

#endif  // THREADS_LAUNCHER_H_
