// What each call in a run of a model takes: kernels, and what the virtual machine does between them.
#ifndef RUNNER_PROFILE_H_
#define RUNNER_PROFILE_H_

#include <dlpack/dlpack.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../library/edge_model.h"
#include "samples.h"

namespace runner {

struct Call {
  std::string name;
  int64_t bytes = 0;            // of its arguments that are tensors, results among them
  std::vector<int64_t> own_ns;  // without the calls within it, one for each watched run
};

struct Profile {
  std::vector<Call> calls;           // in the order in which the first watched run began them
  std::vector<int64_t> plain_ns;     // whole runs that nobody watched
  std::vector<int64_t> watched_ns;   // whole runs that were, each of them beside a plain one
  int64_t other_runs = 0;            // watched runs that made other calls, and so are not among these
  DLDevice device{kDLCPU, 0};  // what the kernels ran on
  bool waits = false;  // whether each call was waited for, as on a device that computes on its own
};

// Runs the model on samples in turns watched and unwatched, `runs` times each. A fault is kExitRunFailed; among
// them: a run makes more calls than a report should hold.
Profile Watch(edge_model* model, Samples* samples, int64_t runs);

void WriteProfile(const std::string& path, const Profile& profile);

}  // namespace runner

#endif  // RUNNER_PROFILE_H_
