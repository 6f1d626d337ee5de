// What computes a model beside the CPU.
#ifndef RUNNER_PROCESSOR_H_
#define RUNNER_PROCESSOR_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/extra/json.h>

namespace runner {

// {"name": ..., "driver": ..., "version": ..., "units": ...} in its driver's words, as printable ASCII;
// null for the CPU, which the host knows.
tvm::ffi::json::Value ProcessorOf(DLDevice device);

}  // namespace runner

#endif  // RUNNER_PROCESSOR_H_
