// A model at the rate of an application: a run each period, whether or not the last one has ended.
#ifndef RUNNER_PERIODIC_H_
#define RUNNER_PERIODIC_H_

#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <string>

#include "../library/edge_model.h"
#include "load.h"
#include "samples.h"

namespace runner {

struct PeriodicPlan {
  int64_t period_us = 0;
  int64_t for_ms = 0;
  int64_t deadline_us = 0;
  bool attended = false;  // print the progress, and end when there is something to read, or no more
  std::string sysfs;
};

// Runs the model on samples at times that lie a period apart. The latency of a run begins at its time, also if an earlier run
// made it begin late; so it contains what an application would wait. Returns what docs/report.md describes.
tvm::ffi::json::Object RunPeriodically(edge_model* model, Samples* samples, const PeriodicPlan& plan,
                                      Load* load);

// Gives this thread and those that it starts from now on a real-time priority, above all ordinary processes.
// kExitRights if the system does not allow it.
void UseRealTimePriority();

// Keeps this process' memory in RAM. kExitRights if the system does not allow it.
void LockMemory();

}  // namespace runner

#endif  // RUNNER_PERIODIC_H_
