// See peak.h. Linux only: sysinfo, and what /proc/cpuinfo calls instructions.
#include "peak.h"

#include <sys/sysinfo.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/runtime/c_backend_api.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "../model/device.h"
#include "../model/fault.h"
#include "../model/stage.h"
#include "../threads/launcher.h"
#include "clock.h"

namespace runner {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

// --- multiply-adds --------------------------------------------------------------------------------

constexpr int kChains = 12;  // more than latency times issue width of any CPU, and all in registers
constexpr int64_t kSteps = 4096;

#if defined(__clang__)
#define RUNNER_UNROLLED _Pragma("clang loop unroll(full)")
#define RUNNER_UNROLLED_BY_4 _Pragma("clang loop unroll_count(4)")
#else  // an NDK of one's own may be any compiler
#define RUNNER_UNROLLED _Pragma("GCC unroll 16")
#define RUNNER_UNROLLED_BY_4 _Pragma("GCC unroll 4")
#endif

[[maybe_unused]] typedef float Vector16 __attribute__((vector_size(16)));
[[maybe_unused]] typedef float Vector32 __attribute__((vector_size(32)));
[[maybe_unused]] typedef float Vector64 __attribute__((vector_size(64)));

// Independent chains of x = x * a + b on vectors, so that only the units that compute them limit it.
// The empty asm leaves the compiler nothing to work out beforehand. Returns operations.
template <typename Vector>
__attribute__((always_inline)) inline int64_t Chains(float* values) {
  constexpr int lanes = static_cast<int>(sizeof(Vector) / sizeof(float));
  const Vector a = Vector{} + values[0], b = Vector{} + values[1];
  Vector chain[kChains];
  RUNNER_UNROLLED
  for (int i = 0; i < kChains; ++i) chain[i] = Vector{} + static_cast<float>(i);
  for (int64_t step = 0; step < kSteps; ++step) {
  RUNNER_UNROLLED
    for (int i = 0; i < kChains; ++i) chain[i] = chain[i] * a + b;
    __asm__ volatile("" ::: "memory");
  }
  Vector sum = chain[0];
  RUNNER_UNROLLED
  for (int i = 1; i < kChains; ++i) sum += chain[i];
  float parts[lanes];
  std::memcpy(parts, &sum, sizeof(sum));
  for (float part : parts) values[2] += part;
  return 2 * int64_t{kChains} * kSteps * lanes;
}

struct Kernel {
  const char* instructions;
  int64_t (*run)(float* values);
};

[[maybe_unused]] bool Has(const std::vector<std::string>& features) {
  try {
    edge::CheckCpuFeatures(features, "");
    return true;
  } catch (const edge::Fault&) {
    return false;
  }
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) int64_t Avx512(float* values) { return Chains<Vector64>(values); }
__attribute__((target("avx2,fma"))) int64_t Avx2(float* values) { return Chains<Vector32>(values); }
int64_t Sse2(float* values) { return Chains<Vector16>(values); }

Kernel Fastest() {
  if (Has({"avx512f"})) return {"AVX-512", Avx512};
  if (Has({"avx2", "fma"})) return {"AVX2 and FMA", Avx2};
  return {"SSE2", Sse2};
}
#elif defined(__aarch64__)
int64_t Neon(float* values) { return Chains<Vector16>(values); }

Kernel Fastest() { return {"NEON", Neon}; }
#elif defined(__arm__)
__attribute__((target("neon,vfp4"))) int64_t NeonFused(float* values) { return Chains<Vector16>(values); }
__attribute__((target("neon"))) int64_t Neon(float* values) { return Chains<Vector16>(values); }
int64_t Vfp(float* values) { return Chains<float>(values); }

Kernel Fastest() {
  if (Has({"neon", "vfpv4"})) return {"NEON and VFPv4", NeonFused};
  if (Has({"neon"})) return {"NEON", Neon};
  return {"VFP", Vfp};
}
#else
int64_t Plain(float* values) { return Chains<float>(values); }

Kernel Fastest() { return {"plain code", Plain}; }
#endif

// --- both, on all threads -------------------------------------------------------------------------

constexpr int kTries = 25;     // short ones: on a busy device few of them have a CPU to themselves
constexpr double kTryMs = 3;
constexpr int kFewTries = 3;   // and so many in any case, be they as slow as they are
constexpr double kMostMs = 500;
constexpr int64_t kLargestArray = int64_t{64} << 20;  // of bytes: beyond most caches
constexpr int64_t kAtOnce = 6;  // the three arrays are to take half of the free memory at most

struct Work {
  Kernel kernel;
  int64_t repeats;
  std::vector<int64_t> operations;
  std::vector<float> a, b, c;
};

int Compute(int task, TVMParallelGroupEnv*, void* data) {
  Work& work = *static_cast<Work*>(data);
  float values[] = {0.999f, 0.001f, 0.0f};
  for (int64_t i = 0; i < work.repeats; ++i) work.operations[task] += work.kernel.run(values);
  volatile float kept = values[2];
  static_cast<void>(kept);
  return 0;
}

int Triad(int task, TVMParallelGroupEnv* group, void* data) {
  Work& work = *static_cast<Work*>(data);
  typedef float Vector __attribute__((vector_size(16), aligned(4)));  // memory limits it, not these
  constexpr size_t lanes = sizeof(Vector) / sizeof(float);
  const size_t size = work.a.size() / lanes, tasks = static_cast<size_t>(group->num_task);
  const size_t begin = size * static_cast<size_t>(task) / tasks;
  const size_t end = size * (static_cast<size_t>(task) + 1) / tasks;
  auto* a = reinterpret_cast<Vector*>(work.a.data());
  const auto* b = reinterpret_cast<const Vector*>(work.b.data());
  const auto* c = reinterpret_cast<const Vector*>(work.c.data());
  RUNNER_UNROLLED_BY_4
  for (size_t i = begin; i < end; ++i) a[i] = b[i] + 0.5f * c[i];
  return 0;
}

double Seconds(FTVMParallelLambda lambda, Work* work) {
  const Clock::time_point start = Clock::now();
  if (edge::Launcher::Current().Launch(lambda, work, 0) != 0) {
    throw edge::Fault(edge::kExitRunFailed, "the threads failed");
  }
  return std::max(1e-9, static_cast<double>(NanosecondsSince(start)) / 1e9);
}

bool GoesOn(int attempt, Clock::time_point start) {
  return attempt < kFewTries || (attempt < kTries && MillisecondsSince(start) < kMostMs);
}

double BestGflops(Work* work) {
  double best = 0;
  const Clock::time_point start = Clock::now();
  for (int attempt = 0; GoesOn(attempt, start); ++attempt) {
    std::fill(work->operations.begin(), work->operations.end(), 0);
    const double seconds = Seconds(Compute, work);
    double operations = 0;
    for (int64_t one : work->operations) operations += static_cast<double>(one);
    best = std::max(best, operations / seconds / 1e9);
    if (attempt == 0) {  // which only warms up, and tells how many make a try
      const double scale = kTryMs / 1000 / seconds * static_cast<double>(work->repeats);
      work->repeats = std::clamp<int64_t>(static_cast<int64_t>(scale), 1, 100'000);
    }
  }
  return best;
}

double BestGbytes(Work* work) {
  double best = 0;
  const double bytes = 3.0 * sizeof(float) * static_cast<double>(work->a.size());
  const Clock::time_point start = Clock::now();
  for (int attempt = 0; GoesOn(attempt, start); ++attempt) {
    best = std::max(best, bytes / Seconds(Triad, work) / 1e9);
  }
  return best;
}

int64_t ArrayBytes() {
  struct sysinfo found = {};
  if (sysinfo(&found) != 0) return kLargestArray / 8;
  const int64_t free = static_cast<int64_t>(found.freeram) * found.mem_unit;
  return std::clamp<int64_t>(free / kAtOnce, 1 << 20, kLargestArray);
}

Work WorkFor(const edge::Launcher& launcher) {
  const int tasks = launcher.size() * edge::kPiecesPerThread;
  return {Fastest(), 1, std::vector<int64_t>(static_cast<size_t>(tasks)), {}, {}, {}};
}

}  // namespace

double MeasureGflops() {
  Work work = WorkFor(edge::Launcher::Current());
  return BestGflops(&work);
}

Peak MeasurePeak(int64_t threads) {
  edge::EnterStage(edge::kExitRunFailed, "measuring the peak", "");
  const std::vector<int> cpus = edge::ChooseCpus(threads);
  edge::StayOn(cpus);
  edge::PoolOptions options;
  options.threads = std::max<int>(1, static_cast<int>(cpus.size()));
  options.cpus = cpus;
  options.pinned = true;
  edge::Launcher launcher(std::make_shared<edge::ThreadPool>(options));
  const edge::UseLauncher use(&launcher);
  Work work = WorkFor(launcher);
  Peak peak{work.kernel.instructions, launcher.size(), BestGflops(&work), 0, ArrayBytes() / 1024};
  const size_t size = static_cast<size_t>(peak.array_kib) * 1024 / sizeof(float);
  work.a.assign(size, 0.0f);
  work.b.assign(size, 1.0f);
  work.c.assign(size, 2.0f);
  peak.gbytes_s = BestGbytes(&work);
  return peak;
}

std::string PeakLine(const Peak& peak) {
  return std::string(json::Stringify(json::Object{{String("instructions"), String(peak.instructions)},
                                                  {String("threads"), peak.threads},
                                                  {String("gflops"), peak.gflops},
                                                  {String("gbytes_s"), peak.gbytes_s},
                                                  {String("array_kib"), peak.array_kib}}));
}

}  // namespace runner
