// runner: runs and times the model of one release on the device it is started on. See options.cc
// for its usage.
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "compare.h"
#include "crash.h"
#include "device.h"
#include "fault.h"
#include "files.h"
#include "manifest.h"
#include "model.h"
#include "options.h"
#include "report.h"
#include "safetensors.h"
#include "timing.h"

namespace runner {
namespace {

TimingPlan PlanFrom(const Options& options) {
  return {options.warmup_runs, options.min_runs, options.max_runs, options.budget_ms,
          options.progress};
}

// Loads everything that a run needs; `report` gets the time this took, without that for the inputs.
Model LoadModel(const Manifest& manifest, const std::string& inputs_path, Report* report) {
  EnterStage(kExitInput, "reading the inputs", inputs_path);
  std::vector<tvm::ffi::Tensor> inputs = LoadInputs(manifest, inputs_path);
  CheckCpuFeatures(manifest.cpu_features, manifest.path);

  const Clock::time_point start = Clock::now();
  EnterStage(kExitInput, "reading the parameters", manifest.params);
  const std::vector<tvm::ffi::Tensor> params = LoadParams(manifest);
  EnterStage(kExitLoad, "loading the library", manifest.library);
  Model model(manifest);
  model.Bind(std::move(inputs), params);
  report->load_ms = MillisecondsSince(start);
  return model;
}

void RunRelease(const Options& options) {
  CheckWritable(options.outputs);
  CheckWritable(options.report);
  const std::vector<int> cpus = ChooseCpus(options.threads);

  EnterStage(kExitInput, "reading the manifest", options.release + "/manifest.json");
  const Manifest manifest = ReadManifest(options.release);
  Report report;
  const Model model = LoadModel(manifest, options.inputs, &report);

  EnterStage(kExitRunFailed, "running the model", manifest.library);
  report.threads = ConfigureThreads(cpus, !options.no_pin);
  const Clock::time_point start = Clock::now();
  const tvm::ffi::Any result = model.Run();
  report.first_run_ms = MillisecondsSince(start);
  const NamedTensors outputs = NameOutputs(manifest, result);
  if (!options.expected.empty()) {
    EnterStage(kExitInput, "comparing the outputs", options.expected);
    CheckExpected(manifest, outputs, options.expected, options.tolerance);
    EnterStage(kExitRunFailed, "running the model", manifest.library);
  }
  report.timings = Measure(model, PlanFrom(options));
  report.peak_rss_kib = PeakRssKib();

  EnterStage(kExitUsage, "writing the outputs", options.outputs);
  WriteSafetensors(options.outputs, outputs);
  EnterStage(kExitUsage, "writing the report", options.report);
  WriteReport(options.report, report);
}

void Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  if (options.help) {
    fputs(kUsage, stdout);
  } else if (options.version) {
    puts(VersionLine().c_str());
  } else {
    RunRelease(options);
  }
}

int MainWithFaults(int argc, char** argv) {
  InstallCrashHandlers();
  EnterStage(kExitUsage, "starting", "");
  try {
    Main(argc, argv);
    return kExitOk;
  } catch (const Fault& fault) {
    PrintFault(fault.what(), fault.file());
    return fault.code();
  } catch (const std::exception& error) {
    // An error of TVM or of the standard library: the step in progress says what it means.
    PrintFault(StageDoing() + " failed: " + error.what(), StageFile());
    return StageCode();
  }
}

}  // namespace
}  // namespace runner

int main(int argc, char** argv) {
  const int code = runner::MainWithFaults(argc, argv);
  // All files are written and synced. Leaving without destructors saves the tenth of a second that
  // TVM's pool spins before its threads notice the end, and a crash in a library's destructors
  // cannot spoil the result.
  fflush(nullptr);
  _exit(code);
}
