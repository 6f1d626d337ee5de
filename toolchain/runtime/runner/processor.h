// What computes a model beside the CPU.
#ifndef RUNNER_PROCESSOR_H_
#define RUNNER_PROCESSOR_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/extra/json.h>

#include <string>

namespace runner {

// {"name": ..., "driver": ..., "version": ..., "units": ...} in its driver's words, as printable ASCII;
// null for the CPU, which the host knows.
tvm::ffi::json::Value ProcessorOf(DLDevice device);

// {"name": ..., "float16_lacks": ..., "half_sums_lacks": ...} of the first device of a kind, as manifests
// name it, in one line: what kernels in half precision miss there, and those that sum up in it. A device
// that cannot be used is kExitLoad, and a kind that this runner does not know is kExitUsage.
std::string HalvesLine(const std::string& kind);

}  // namespace runner

#endif  // RUNNER_PROCESSOR_H_
