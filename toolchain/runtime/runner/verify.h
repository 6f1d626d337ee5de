// Verifies a release without running it, and raises floors.
#ifndef RUNNER_VERIFY_H_
#define RUNNER_VERIFY_H_

#include <string>

#include "options.h"

namespace runner {

// {"bundle": ..., "model": ..., "board": ..., "sequence": ..., "minimum": ..., "floor": ...,
// "signers": [...]} in one line. Faults are kExitUntrusted where the device does not take the release.
std::string Verify(const Options& options);

}  // namespace runner

#endif  // RUNNER_VERIFY_H_
