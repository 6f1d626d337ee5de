// See open.h.
#include "open.h"

#include "samples.h"

namespace runner {

edge_model* OpenRelease(const Options& options, const std::string& folder, const std::string& variant) {
  edge_options wanted = EDGE_OPTIONS;
  wanted.threads = EDGE_ALL_CPUS;
  wanted.pin = options.no_pin ? 0 : 1;
  wanted.trust = options.trust.empty() ? nullptr : options.trust.c_str();
  edge_model* model = nullptr;
  Check(edge_open(folder.c_str(), &wanted, &model));
  if (!variant.empty()) Check(edge_select(model, variant.c_str()));
  return model;
}

}  // namespace runner
