// How far a model's outputs lie from those that are expected: the rule of toolchain/tensors.py.
#ifndef RUNNER_COMPARE_H_
#define RUNNER_COMPARE_H_

#include <string>

#include "../model/manifest.h"
#include "samples.h"

namespace runner {

struct Difference {
  double max_abs = 0;
  double max_rel = 0;  // of the output where it is the largest, relative to its largest element
  double tolerance = 0;
  bool ok = true;
};

// Compares the outputs, cut to their counts where the manifest gives them a bound, with a
// safetensors file. The tolerance is text from the command line; empty, it follows from each type.
// Faults are kExitUsage for the tolerance, kExitInput for the file, and kExitDifferent for outputs
// of other names or shapes.
Difference Compare(const edge::Manifest& manifest, const NamedTensors& outputs,
                   const std::string& expected, const std::string& tolerance);

// Prints the difference as a line of JSON; the fault kExitDifferent, if it is too large.
void CheckExpected(const edge::Manifest& manifest, const NamedTensors& outputs,
                   const std::string& expected, const std::string& tolerance);

}  // namespace runner

#endif  // RUNNER_COMPARE_H_
