// See build_options.h.
#include "build_options.h"

#include <cstdlib>

namespace opencl {

std::string BuildOptions(const Limits& limits, bool images) {
  std::string options = limits.is_12 ? "-cl-std=CL1.2" : "";
  if (images) options += options.empty() ? "-DEDGE_IMAGES" : " -DEDGE_IMAGES";
  const char* more = std::getenv("EDGE_OPENCL_OPTIONS");
  if (more != nullptr && *more != '\0') options += (options.empty() ? "" : " ") + std::string(more);
  return options;
}

}  // namespace opencl
