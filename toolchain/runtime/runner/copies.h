// What an accelerator with memory of its own makes a run copy.
#ifndef RUNNER_COPIES_H_
#define RUNNER_COPIES_H_

#include <tvm/ffi/extra/json.h>

#include <cstdint>

namespace runner {

// Of this process, of all accelerators together, until now. All are 0 where none was used.
struct Copies {
  int64_t kernels = 0;  // that ran
  int64_t to_device = 0;  // bytes
  int64_t from_device = 0;
  int64_t resident = 0;
};

Copies CopiesNow();

// {"to_device": ..., "from_device": ..., "resident": ...} in bytes for one of so many runs between;
// null where no accelerator ran.
tvm::ffi::json::Value CopiesPerRun(const Copies& before, const Copies& after, int64_t runs);

}  // namespace runner

#endif  // RUNNER_COPIES_H_
