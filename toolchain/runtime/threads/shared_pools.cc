// See shared_pools.h. Linux only: what threads inherit, and a thread's nice value.
#include "shared_pools.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <vector>

namespace edge {
namespace {

// What workers get from the thread that starts them.
struct Inherited {
  int policy = 0, priority = 0, nice = 0;
  cpu_set_t cpus;

  explicit Inherited(const PoolOptions& options) {
    CPU_ZERO(&cpus);
    if (options.execute != nullptr) return;
    if (options.priority == 0) {
      sched_param param = {};
      pthread_getschedparam(pthread_self(), &policy, &param);
      priority = param.sched_priority;
      nice = getpriority(PRIO_PROCESS, 0);  // of this thread: 0 is the caller
    }
    if (options.cpus.empty()) sched_getaffinity(0, sizeof(cpus), &cpus);
  }

  bool operator==(const Inherited& other) const {
    return policy == other.policy && priority == other.priority && nice == other.nice &&
           CPU_EQUAL(&cpus, &other.cpus);
  }
};

bool Agree(const PoolOptions& one, const PoolOptions& other) {
  return one.threads == other.threads && one.cpus == other.cpus && one.pinned == other.pinned &&
         one.spin == other.spin && one.priority == other.priority && one.execute == other.execute &&
         one.context == other.context;
}

struct Entry {
  PoolOptions options;
  Inherited inherited;
  std::weak_ptr<ThreadPool> pool;
};

// Never destroyed: an application may close its models while the process ends.
struct Registry {
  std::mutex mutex;
  std::vector<Entry> entries;
  std::atomic<uint32_t> forks{0};

  // No other thread is in the registry while the process forks, so that the child finds it whole.
  static void Prepare() { Get().mutex.lock(); }
  static void GoOn() { Get().mutex.unlock(); }
  static void BeginChild() {
    Get().forks.fetch_add(1);
    Get().mutex.unlock();
  }

  static Registry& Get() {
    static Registry& registry = *new Registry();
    return registry;
  }
};

}  // namespace

std::shared_ptr<ThreadPool> SharedPool(const PoolOptions& options) {
  CountForks();
  Registry& registry = Registry::Get();
  const Inherited inherited(options);
  const std::lock_guard<std::mutex> lock(registry.mutex);
  std::vector<Entry>& entries = registry.entries;
  entries.erase(std::remove_if(entries.begin(), entries.end(), [](const Entry& entry) { return entry.pool.expired(); }),
                entries.end());
  for (const Entry& entry : entries) {
    if (!Agree(entry.options, options) || !(entry.inherited == inherited)) continue;
    std::shared_ptr<ThreadPool> pool = entry.pool.lock();
    if (pool != nullptr && !pool->IsOfAnotherProcess()) return pool;
  }
  auto pool = std::make_shared<ThreadPool>(options);
  entries.push_back({options, inherited, pool});
  return pool;
}

uint32_t CountForks() {
  static const int failed = pthread_atfork(&Registry::Prepare, &Registry::GoOn, &Registry::BeginChild);
  if (failed != 0) throw std::bad_alloc();
  return Registry::Get().forks.load(std::memory_order_relaxed);
}

}  // namespace edge
