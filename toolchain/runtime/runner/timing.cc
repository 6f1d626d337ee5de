// See timing.h.
#include "timing.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>

namespace runner {
namespace {

constexpr double kProgressEveryMs = 1000.0;

// At most one line per second, written between two samples.
class Progress {
 public:
  explicit Progress(const TimingPlan& plan) : plan_(plan), last_(Clock::now()) {}

  void Update(size_t runs, double elapsed_ms) {
    if (!plan_.progress || MillisecondsSince(last_) < kProgressEveryMs) return;
    last_ = Clock::now();
    fprintf(stderr, "runner: %zu runs in %.1f s of %.1f s\n", runs, elapsed_ms / 1000.0,
            static_cast<double>(plan_.budget_ms) / 1000.0);
  }

 private:
  const TimingPlan& plan_;
  Clock::time_point last_;
};

bool WantsMore(const TimingPlan& plan, size_t runs, double elapsed_ms) {
  const int64_t done = static_cast<int64_t>(runs);
  if (done >= plan.max_runs) return false;
  return done < plan.min_runs || elapsed_ms < static_cast<double>(plan.budget_ms);
}

}  // namespace

int64_t InvoluntarySwitches() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

int64_t TimeOneRun(edge_model* model) {
  const Clock::time_point start = Clock::now();
  const int status = edge_step(model);
  const int64_t taken = NanosecondsSince(start);
  Check(status);
  return taken;
}

Timings Measure(edge_model* model, Samples* samples, const TimingPlan& plan) {
  Timings timings;
  if (plan.max_runs == 0) return timings;
  Progress progress(plan);
  const Clock::time_point warmup_start = Clock::now();
  for (int64_t run = 0; run < plan.warmup_runs; ++run) {
    FeedNext(samples);
    timings.warmup_ns.push_back(TimeOneRun(model));
    progress.Update(timings.warmup_ns.size(), MillisecondsSince(warmup_start));
  }

  // Room beforehand, so that no sample pays for a growing vector.
  timings.samples_ns.reserve(static_cast<size_t>(std::min<int64_t>(plan.max_runs, 1'000'000)));
  const int64_t switches = InvoluntarySwitches();
  const Clock::time_point start = Clock::now();
  for (double elapsed = 0; WantsMore(plan, timings.samples_ns.size(), elapsed);
       elapsed = MillisecondsSince(start)) {
    FeedNext(samples);
    timings.samples_ns.push_back(TimeOneRun(model));
    progress.Update(timings.samples_ns.size(), elapsed);
  }
  timings.involuntary_switches = InvoluntarySwitches() - switches;
  return timings;
}

}  // namespace runner
