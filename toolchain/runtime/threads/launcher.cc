// See launcher.h.
#include "launcher.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace edge {
namespace {

thread_local Launcher* used = nullptr;
thread_local std::unique_ptr<Launcher> own;
thread_local CpuWatch launchers_watch;
// When this thread last left Launch.
thread_local CpuWatch::Clock::time_point left{};

int RunAlone(FTVMParallelLambda lambda, void* data, int tasks) {
  TVMParallelGroupEnv env = {nullptr, tasks == 0 ? 1 : tasks};
  for (int task = 0; task < env.num_task; ++task) {
    if (lambda(task, &env, data) != 0) return -1;
  }
  return 0;
}

// Marks this thread as one that runs tasks.
class WithinTask {
 public:
  WithinTask() : before_(IsWithinTask()) { IsWithinTask() = true; }
  ~WithinTask() { IsWithinTask() = before_; }

 private:
  const bool before_;
};

bool Never() { return false; }

}  // namespace

Launcher::Launcher(std::shared_ptr<ThreadPool> pool) : pool_(std::move(pool)), queue_(pool_->TakeQueue()) {}

Launcher::~Launcher() { pool_->GiveQueue(queue_); }

int Launcher::Launch(FTVMParallelLambda lambda, void* data, int tasks) {
  if (IsWithinTask() || size() == 1 || pool_->IsOfAnotherProcess()) return RunAlone(lambda, data, tasks);
  const auto start = CpuWatch::Clock::now();
  launchers_watch.SetAside(start - left);
  queue_->launchers_cpu().Look(launchers_watch, pool_->neighbours_, start);
  queue_->Fill(lambda, data, tasks == 0 ? size() * kPiecesPerThread : tasks);
  if (pool_->execute_ != nullptr) {
    pool_->execute_(pool_->context_, &RunForExecutor, this, size());
  } else {
    pool_->Announce();
  }
  uint32_t done = 0;
  {
    const WithinTask within;
    done = queue_->Run(0, Never);
  }
  launchers_watch.SetAside(queue_->Await(done, pool_->spin_, pool_->neighbours_));
  Settle();
  left = CpuWatch::Clock::now();
  return queue_->Outcome();
}

// Each call takes whatever tasks there are, from its own share first. So a call too few or too late
// changes nothing but the time.
void Launcher::RunForExecutor(void* launcher, int32_t number) {
  auto* const self = static_cast<Launcher*>(launcher);
  const WithinTask within;
  self->queue_->Finish(self->queue_->Run(std::clamp(number, 0, self->size() - 1), Never));
}

// A thread that has computed no part of a kernel so far is to find its memory there when it does.
void Launcher::Settle() {
  if (pool_->execute_ != nullptr) return;
  Workspaces& mine = Workspaces::Current();
  if (mine.HasGrown()) queue_->Ask(&mine);
  if (!queue_->HasGrown()) return;
  queue_->Settle([&](const Workspaces::Needs& needs) {
    try {
      mine.Provide(needs);
      return pool_->Provide(needs);
    } catch (const std::bad_alloc&) {  // whoever needs it will ask again
      return true;
    }
  });
}

Launcher& Launcher::Current() {
  if (used != nullptr) return *used;
  if (own == nullptr) {
    PoolOptions options;
    options.threads = ThreadPool::UsualSize();
    SetOwn(options);
  }
  return *own;
}

void Launcher::SetOwn(const PoolOptions& options) {
  own.reset();  // before the new one, which may be for the same CPUs
  own = std::make_unique<Launcher>(std::make_shared<ThreadPool>(options));
}

UseLauncher::UseLauncher(Launcher* launcher)
    : before_(used), pool_(launcher->pool_.get()), workspaces_(&launcher->workspaces_) {
  used = launcher;
  pool_->runs_.fetch_add(1);
}

UseLauncher::~UseLauncher() {
  pool_->runs_.fetch_sub(1);
  used = before_;
}

}  // namespace edge
