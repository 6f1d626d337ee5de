// How this program opens the releases that it runs.
#ifndef RUNNER_OPEN_H_
#define RUNNER_OPEN_H_

#include <string>

#include "../library/edge_model.h"
#include "options.h"

namespace runner {

// With a thread on each CPU that this process may use; `variant` may be empty. Throws what the library reports.
edge_model* OpenRelease(const Options& options, const std::string& folder, const std::string& variant);

}  // namespace runner

#endif  // RUNNER_OPEN_H_
