// The report file and the version line.
#ifndef RUNNER_REPORT_H_
#define RUNNER_REPORT_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <string>
#include <vector>

#include "timing.h"

namespace runner {

struct Report {
  double load_ms = 0;            // manifest, parameters, library and virtual machine
  std::vector<int64_t> each_ns;  // the runs whose outputs are written, one for each sample
  Timings timings;
  int threads = 0;
  int64_t peak_rss_kib = 0;
  std::string weights;  // as edge_release has it
  DLDevice device{kDLCPU, 0};  // what the kernels ran on
  tvm::ffi::json::Value copies;  // see CopiesPerRun
  tvm::ffi::json::Value periodic;  // see RunPeriodically
};

// {"device": ..., "tvm": ..., "tvm_ffi": ..., "machine": ...} in one line.
std::string VersionLine();

// The most memory this process has used, in KiB.
int64_t PeakRssKib();

void WriteReport(const std::string& path, const Report& report);

}  // namespace runner

#endif  // RUNNER_REPORT_H_
