// See report.h.
#include "report.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <tvm/ffi/extra/json.h>

#include <fstream>
#include <vector>

#include "../model/files.h"
#include "processor.h"

namespace runner {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

// As `uname -m` prints it.
std::string MachineName() {
  utsname name = {};
  return uname(&name) == 0 ? name.machine : "unknown";
}

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

int64_t PeakRssKib() {
  // VmHWM starts anew at exec; ru_maxrss would still hold the peak of the parent before its exec.
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    int64_t kib = 0;
    if (key == "VmHWM:" && status >> kib) return kib;
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

std::string VersionLine() { return std::string(json::Stringify(VersionObject())); }

void WriteReport(const std::string& path, const Report& report) {
  const json::Object object{{String("schema"), 1},
                            {String("load_ms"), report.load_ms},
                            {String("each_ns"), ToArray(report.each_ns)},
                            {String("warmup_ns"), ToArray(report.timings.warmup_ns)},
                            {String("samples_ns"), ToArray(report.timings.samples_ns)},
                            {String("involuntary_switches"), report.timings.involuntary_switches},
                            {String("threads"), report.threads},
                            {String("peak_rss_kib"), report.peak_rss_kib},
                            {String("weights"), String(report.weights)},
                            {String("processor"), ProcessorOf(report.device)},
                            {String("copies"), report.copies},
                            {String("periodic"), report.periodic},
                            {String("runner"), VersionObject()}};
  const std::string text = std::string(json::Stringify(object)) + "\n";
  edge::WriteAtomically(path, {text});
}

}  // namespace runner
