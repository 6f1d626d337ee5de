// See build_options.h.
#include "build_options.h"

#include <cstdio>
#include <cstdlib>

namespace opencl {
namespace {

// Devices say "OpenCL 1.2 and more words".
bool HasLanguage12(const std::string& version) {
  int major = 0, minor = 0;
  if (sscanf(version.c_str(), "OpenCL %d.%d", &major, &minor) != 2) return false;
  return major > 1 || (major == 1 && minor >= 2);
}

}  // namespace

std::string BuildOptions(const Limits& limits) {
  std::string options = HasLanguage12(limits.version) ? "-cl-std=CL1.2" : "";
  const char* more = std::getenv("EDGE_OPENCL_OPTIONS");
  if (more != nullptr && *more != '\0') options += (options.empty() ? "" : " ") + std::string(more);
  return options;
}

}  // namespace opencl
