// See report.h.
#include "report.h"

#include <tvm/ffi/extra/json.h>

#include <vector>

#include "device.h"
#include "files.h"

namespace runner {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

json::Object VersionObject() {
  return json::Object{{String("device"), String(RUNNER_VERSION)},
                      {String("tvm"), String(RUNNER_TVM_VERSION)},
                      {String("tvm_ffi"), String(RUNNER_FFI_VERSION)},
                      {String("machine"), String(MachineName())}};
}

json::Array ToArray(const std::vector<int64_t>& values) {
  return json::Array(values.begin(), values.end());
}

}  // namespace

std::string VersionLine() { return std::string(json::Stringify(VersionObject())); }

void WriteReport(const std::string& path, const Report& report) {
  const json::Object object{{String("schema"), 1},
                            {String("load_ms"), report.load_ms},
                            {String("first_run_ms"), report.first_run_ms},
                            {String("warmup_ns"), ToArray(report.timings.warmup_ns)},
                            {String("samples_ns"), ToArray(report.timings.samples_ns)},
                            {String("threads"), report.threads},
                            {String("peak_rss_kib"), report.peak_rss_kib},
                            {String("runner"), VersionObject()}};
  const std::string text = std::string(json::Stringify(object)) + "\n";
  WriteAtomically(path, {text});
}

}  // namespace runner
