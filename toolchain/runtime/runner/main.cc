// runner: runs and times the model of one release on the device it is started on. See options.cc
// for its usage.
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "../library/edge_model.h"
#include "../library/instrument.h"
#include "../model/device.h"
#include "../model/fault.h"
#include "../model/files.h"
#include "../model/manifest.h"
#include "../model/stage.h"
#include "../threads/pool.h"
#include "companion.h"
#include "compare.h"
#include "copies.h"
#include "crash.h"
#include "load.h"
#include "open.h"
#include "options.h"
#include "peak.h"
#include "periodic.h"
#include "processor.h"
#include "profile.h"
#include "raw_samples.h"
#include "report.h"
#include "samples.h"
#include "timing.h"
#include "verify.h"

namespace runner {
namespace {

TimingPlan PlanFrom(const Options& options) {
  return {options.warmup_runs, options.min_runs, options.max_runs, options.budget_ms,
          options.progress};
}

PeriodicPlan PeriodicFrom(const Options& options) {
  const int64_t deadline = options.deadline_us > 0 ? options.deadline_us : options.period_us;
  return {options.period_us, options.for_ms, deadline, options.attended, options.sysfs};
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// Runs every picture or sound, with the steps of the release; returns how long each of them took, in nanoseconds.
std::vector<int64_t> RunRaw(edge_model* model, const Options& options, Outputs* outputs) {
  edge_model* const second = options.crops.empty() ? nullptr : OpenRelease(options, options.crops, "");
  edge::EnterStage(edge::kExitInput, "reading the inputs", options.inputs);
  RawSamples samples(model, second, options.inputs, options.samples);
  std::vector<int64_t> each_ns;
  for (int64_t sample = 0; sample < samples.count(); ++sample) {
    const Clock::time_point start = Clock::now();
    samples.Run(sample);
    each_ns.push_back(NanosecondsSince(start));
    outputs->Take(sample);
  }
  samples.Write(options.objects, options.keep_input);
  return each_ns;
}

// Runs every sample; returns how long each of them took, in nanoseconds.
std::vector<int64_t> RunSamples(edge_model* model, const Samples& samples, Outputs* outputs) {
  std::vector<int64_t> each_ns;
  for (int64_t sample = 0; sample < samples.count(); ++sample) {
    samples.Feed(sample);
    samples.DropPages();
    const Clock::time_point start = Clock::now();
    Check(edge_step(model));
    each_ns.push_back(NanosecondsSince(start));
    outputs->Take(sample);
  }
  return each_ns;
}

Order OrderOf(const Options& options) {
  if (!options.sequence) return Order::kAlone;
  return options.state_in.empty() ? Order::kSequence : Order::kContinued;
}

int64_t RunsOf(const Timings& timings) {
  return static_cast<int64_t>(timings.warmup_ns.size() + timings.samples_ns.size());
}

void RunRelease(const Options& options) {
  edge::CheckWritable(options.outputs);
  edge::CheckWritable(options.report);
  if (!options.profile.empty()) edge::CheckWritable(options.profile);
  if (!options.objects.empty()) edge::CheckWritable(options.objects);
  Load load(options.load, FolderOf(options.report));  // before there are threads, a priority and an affinity
  if (options.fifo) UseRealTimePriority();
  const std::vector<int> cpus = edge::ChooseCpus(options.threads);
  Companion companion(options, cpus);
  edge::StayOn(cpus);  // which may be a few fast ones

  Report report;
  report.threads = static_cast<int>(cpus.size());
  const Clock::time_point start = Clock::now();
  edge_model* model = OpenRelease(options, options.release, options.variant);  // never closed: the process ends with it
  report.load_ms = MillisecondsSince(start);
  report.device = edge::DeviceOf(model);
  edge_release release = EDGE_RELEASE_INFO;
  Check(edge_release_of(model, &release));
  report.weights = release.weights;

  edge::EnterStage(edge::kExitInput, "reading the inputs", options.inputs);
  std::optional<Samples> samples;  // none for pictures and sounds: the input of the last one stays
  Outputs outputs(model, options.samples);
  if (options.objects.empty()) {
    samples.emplace(model, options.inputs, options.samples, OrderOf(options));
    if (!options.state_in.empty()) Check(edge_state_load(model, options.state_in.c_str()));
    report.each_ns = RunSamples(model, *samples, &outputs);
    if (!options.state_out.empty()) Check(edge_state_save(model, options.state_out.c_str()));
  } else {
    report.each_ns = RunRaw(model, options, &outputs);
  }
  if (!options.expected.empty()) {
    edge::EnterStage(edge::kExitInput, "comparing the outputs", options.expected);
    CheckExpected(edge::ReadManifest(options.release), outputs.tensors(), options.expected,
                  options.tolerance);
  }
  if (options.mlock) LockMemory();
  companion.Begin();
  const Copies before = CopiesNow();
  Samples* const repeated = samples ? &*samples : nullptr;
  report.timings = Measure(model, repeated, PlanFrom(options));
  companion.End();
  report.copies = CopiesPerRun(before, CopiesNow(), RunsOf(report.timings));
  if (options.period_us > 0) {
    report.periodic = RunPeriodically(model, repeated, PeriodicFrom(options), &load);
  }
  if (!options.profile.empty()) {
    WriteProfile(options.profile, Watch(model, repeated, options.profile_runs));
  }
  report.peak_rss_kib = PeakRssKib();

  edge::EnterStage(edge::kExitUsage, "writing the outputs", options.outputs);
  outputs.Write(options.outputs);
  edge::EnterStage(edge::kExitUsage, "writing the report", options.report);
  WriteReport(options.report, report);
}

void Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  if (options.help) {
    fputs(kUsage, stdout);
  } else if (options.version) {
    puts(VersionLine().c_str());
  } else if (options.peak) {
    puts(PeakLine(MeasurePeak(options.threads)).c_str());
  } else if (!options.halves.empty()) {
    puts(HalvesLine(options.halves).c_str());
  } else if (!options.verify.empty()) {
    puts(Verify(options).c_str());
  } else {
    RunRelease(options);
  }
}

}  // namespace
}  // namespace runner

int main(int argc, char** argv) {
  runner::InstallCrashHandlers();
  const int code = runner::PrintingFaults([&] { runner::Main(argc, argv); });
  // All files are written and synced. A crash in a library's destructors cannot spoil the result.
  fflush(nullptr);
  _exit(code);
}
