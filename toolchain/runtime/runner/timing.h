// Timing of single calls, raw and unfiltered: statistics are the reader's business.
#ifndef RUNNER_TIMING_H_
#define RUNNER_TIMING_H_

#include <cstdint>
#include <vector>

#include "../library/edge_model.h"
#include "clock.h"
#include "samples.h"

namespace runner {

// How often one of this process' threads lost its CPU to others so far.
int64_t InvoluntarySwitches();

// One run on what the inputs hold, in nanoseconds; of a model with a state, a step. Throws what it reports.
int64_t TimeOneRun(edge_model* model);

struct TimingPlan {
  int64_t warmup_runs;
  int64_t min_runs;
  int64_t max_runs;  // wins over min_runs; 0 means that nothing is timed
  int64_t budget_ms;
  bool progress;
};

struct Timings {
  std::vector<int64_t> warmup_ns;
  std::vector<int64_t> samples_ns;
  int64_t involuntary_switches = 0;  // of all threads during the samples: others wanted their CPUs
};

// Times the model on samples. Warms up, then repeats until the budget is used up, within the two limits on the number of runs.
Timings Measure(edge_model* model, Samples* samples, const TimingPlan& plan);

}  // namespace runner

#endif  // RUNNER_TIMING_H_
