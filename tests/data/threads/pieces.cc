// Launches jobs on pools of threads whose tasks are delayed at random, and counts what is wrong.
//
//     pieces JOBS
#include <tvm/ffi/error.h>
#include <sys/wait.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "launcher.h"
#include "shared_pools.h"

// The child of TestFork starts threads.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace {

std::atomic<int> faults{0};

void Expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  ++faults;
}

void Delay() {
  thread_local std::minstd_rand stream(
      static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
  const unsigned choice = stream() % 64;
  if (choice == 0) usleep(200);
  if (choice < 4) std::this_thread::yield();
}

// A loop over numbers as the compiler shares it, each computed from its own input.
struct Loop {
  std::vector<float> in, out;
  std::vector<std::atomic<int>> visits;

  explicit Loop(size_t size) : in(size), out(size), visits(size) {
    for (size_t i = 0; i < size; ++i) in[i] = static_cast<float>(i) / 7.0f;
  }

  static int Run(int task, TVMParallelGroupEnv* env, void* data) {
    Loop& loop = *static_cast<Loop*>(data);
    const size_t tasks = static_cast<size_t>(env->num_task), size = loop.in.size();
    const size_t step = (size + tasks - 1) / tasks;
    Delay();
    for (size_t i = std::min(size, step * static_cast<size_t>(task)); i < std::min(size, step * static_cast<size_t>(task + 1)); ++i) {
      loop.out[i] = loop.in[i] * 3.0f + 1.0f / (loop.in[i] + 1.0f);
      loop.visits[i].fetch_add(1);
    }
    return 0;
  }
};

std::vector<float> Computed(edge::Launcher& pool, size_t size, int tasks) {
  Loop loop(size);
  Expect(pool.Launch(Loop::Run, &loop, tasks) == 0, "a job fails");
  for (const auto& count : loop.visits) Expect(count.load() == 1, "a number is not computed once");
  return loop.out;
}

// Any number of threads and of tasks, several pools at once: the same bits.
void TestBits(int jobs) {
  std::vector<std::thread> callers;
  for (int threads : {1, 2, 3, 5}) {
    callers.emplace_back([threads, jobs] {
      edge::PoolOptions options;
      options.threads = threads;
      options.spin = std::chrono::microseconds(threads == 3 ? 0 : 100);
      edge::Launcher pool(std::make_shared<edge::ThreadPool>(options));
      for (int job = 0; job < jobs / 4; ++job) {
        const size_t size = static_cast<size_t>(job % 37 + 1);
        Loop alone(size);
        TVMParallelGroupEnv one = {nullptr, 1};
        Loop::Run(0, &one, &alone);
        Expect(Computed(pool, size, job % 5 == 0 ? job % 41 + 1 : 0) == alone.out, "other bits than one thread's");
        if (job % 100 == 0) usleep(500);  // so that the workers go to sleep
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// Asks for memory as kernels do, of another size for each launcher.
struct Scratch {
  size_t size;

  static int Run(int task, TVMParallelGroupEnv*, void* data) {
    const size_t size = static_cast<Scratch*>(data)->size;
    auto& workspaces = edge::Workspaces::Current();
    auto* const memory = static_cast<char*>(workspaces.Take(size, edge::IsWithinTask()));
    std::fill_n(memory, size, static_cast<char>(task));
    Delay();
    for (size_t i = 0; i < size; i += 512) Expect(memory[i] == static_cast<char>(task), "memory is another task's");
    workspaces.Give(memory);
    return 0;
  }
};

// Several launchers of one pool at once, of which some come and go: the same bits, and no more threads than one
// pool has.
void TestSharedPool(int jobs) {
  edge::PoolOptions options;
  options.threads = 4;
  const std::shared_ptr<edge::ThreadPool> kept = edge::SharedPool(options);
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < 3; ++caller) {
    callers.emplace_back([caller, jobs, options, &kept] {
      std::unique_ptr<edge::Launcher> launcher;
      for (int job = 0; job < jobs / 4; ++job) {
        if (launcher == nullptr || (caller == 2 && job % 50 == 0)) {
          launcher.reset();
          const auto pool = edge::SharedPool(options);
          Expect(pool == kept, "equal options give another pool");
          launcher = std::make_unique<edge::Launcher>(pool);
        }
        const edge::UseLauncher use(launcher.get());
        const size_t size = static_cast<size_t>(job % 37 + 1);
        Loop alone(size);
        TVMParallelGroupEnv one = {nullptr, 1};
        Loop::Run(0, &one, &alone);
        Expect(Computed(*launcher, size, job % 5 == 0 ? job % 41 + 1 : 0) == alone.out, "other bits than alone");
        Scratch scratch{(caller + 1) << (10 + job % 5)};
        Expect(launcher->Launch(Scratch::Run, &scratch, 0) == 0, "a job with memory fails");
        if (job % 100 == 0) usleep(500);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// Options that differ in anything that a worker can see have another pool.
void TestOtherOptions() {
  edge::PoolOptions options;
  options.threads = 2;
  const auto pool = edge::SharedPool(options);
  edge::PoolOptions other = options;
  other.threads = 3;
  Expect(edge::SharedPool(other) != pool, "another number of threads");
  other = options;
  other.spin = std::chrono::microseconds(1);
  Expect(edge::SharedPool(other) != pool, "another time to spin");
  other = options;
  other.cpus = {0};
  Expect(edge::SharedPool(other) != pool, "other CPUs");
  Expect(edge::SharedPool(options) == pool, "the same options");
  std::weak_ptr<edge::ThreadPool> ended = edge::SharedPool(other);
  Expect(ended.expired(), "a pool that nobody uses goes on");
}

// A child has none of the threads: it computes alone with the parent's launcher, and gets a new pool.
void TestFork() {
  edge::PoolOptions options;
  options.threads = 3;
  auto pool = edge::SharedPool(options);
  auto launcher = std::make_unique<edge::Launcher>(pool);
  Computed(*launcher, 100, 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    Computed(*launcher, 100, 0);
    launcher.reset();
    const auto fresh = edge::SharedPool(options);
    Expect(fresh != pool, "a child gets its parent's threads");
    pool.reset();
    edge::Launcher again(fresh);
    Computed(again, 100, 0);
    _exit(faults == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  Expect(status == 0, "a child fails");
  Computed(*launcher, 100, 0);
}

// A worker that stops within a task keeps nobody else from the rest.
struct Held {
  std::thread::id launcher;
  int tasks;
  std::atomic<int> done{0};

  static int Run(int, TVMParallelGroupEnv*, void* data) {
    Held& held = *static_cast<Held*>(data);
    if (std::this_thread::get_id() != held.launcher) {
      for (int wait = 0; held.done.load() < held.tasks - 1 && wait < 20000; ++wait) usleep(1000);
      Expect(held.done.load() >= held.tasks - 1, "the others wait for a worker");
    } else {
      usleep(100);
    }
    held.done.fetch_add(1);
    return 0;
  }
};

void TestHeldWorker() {
  edge::PoolOptions options;
  options.threads = 2;
  edge::Launcher pool(std::make_shared<edge::ThreadPool>(options));
  for (int round = 0; round < 20; ++round) {
    Held held{std::this_thread::get_id(), 8};
    Expect(pool.Launch(Held::Run, &held, 8) == 0, "a job with a stopped worker fails");
  }
}

int Fails(int task, TVMParallelGroupEnv*, void*) {
  if (task != 5) return 0;
  tvm::ffi::details::SetSafeCallRaised(tvm::ffi::Error("ValueError", "task five", ""));
  return -1;
}

int Nests(int, TVMParallelGroupEnv*, void* data) {
  return static_cast<edge::Launcher*>(data)->Launch(
      [](int, TVMParallelGroupEnv*, void*) { return 0; }, nullptr, 0);
}

void TestErrors() {
  edge::PoolOptions options;
  options.threads = 3;
  edge::Launcher pool(std::make_shared<edge::ThreadPool>(options));
  for (int round = 0; round < 100; ++round) {
    Expect(pool.Launch(Fails, nullptr, 9) == -1, "an error is lost");
    const tvm::ffi::Error error = tvm::ffi::details::MoveFromSafeCallRaised();
    Expect(std::string(error.message()) == "task five", "another error");
    Expect(pool.Launch(Nests, &pool, 0) == 0, "a task cannot launch");
  }
}

double CpuSeconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

void TestIdle() {
  edge::PoolOptions options;
  options.threads = 4;
  edge::Launcher pool(std::make_shared<edge::ThreadPool>(options));
  Computed(pool, 100, 0);
  usleep(100000);
  const double before = CpuSeconds();
  usleep(1000000);
  Expect(CpuSeconds() - before < 0.05, "threads without work use the CPU");
}

}  // namespace

int main(int, char** arguments) {
  TestBits(std::atoi(arguments[1]));
  TestHeldWorker();
  TestErrors();
  TestSharedPool(std::atoi(arguments[1]));
  TestOtherOptions();
  TestFork();
  TestIdle();
  std::printf("%d faults\n", faults.load());
  return faults == 0 ? 0 : 1;
}
