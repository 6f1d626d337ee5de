// See options.h. The options are rows of tables, so that parsing is the same few lines for all.
#include "options.h"

#include <charconv>
#include <set>

#include "../model/fault.h"

namespace runner {

using edge::Fault;
using edge::kExitUsage;

const char kUsage[] =
    "usage: runner --release DIR --inputs IN.safetensors --outputs OUT.safetensors --report "
    "OUT.json\n"
    "              [--warmup-runs 1] [--min-runs 3] [--max-runs 10000] [--budget-ms 10000]\n"
    "              [--samples N [--sequence]] [--threads N] [--no-pin] [--progress]\n"
    "              [--state-in FILE] [--state-out FILE] [--variant NAME]\n"
    "              [--expected OUT.safetensors [--tolerance X]] [--trust DIR]\n"
    "              [--beside DIR --beside-inputs IN.safetensors [--beside-steps N] [--beside-variant NAME]]\n"
    "              [--profile OUT.json [--profile-runs 50]]\n"
    "              [--objects OUT.safetensors [--keep-input | --crops DIR]]\n"
    "              [--period-us N [--for-ms 60000] [--deadline-us N] [--load cpu|memory|io]\n"
    "               [--fifo] [--mlock] [--attended]]\n"
    "       runner --verify DIR [--signed FILE] [--trust DIR] [--floor N]\n"
    "       runner --peak [--threads N]\n"
    "       runner --halves KIND\n"
    "       runner --version\n"
    "\n"
    "Runs the model of a release once for its outputs, then times it call by call.\n"
    "--variant is one of a release that was compiled for several sets of shapes; its first one without it.\n"
    "With --samples, each input has one more dimension in front, of N samples, and so has each "
    "output.\n"
    "A model with a state takes no inputs for it: each sample begins with zeros, unless they are the steps "
    "of a\n"
    "--sequence, which begins with zeros or --state-in, and leaves --state-out.\n"
    "With --objects, the inputs are RGB pictures or WAV files 0, 1 and so on, and the steps of the release turn "
    "them into the\n"
    "model's input, and its output into objects; --keep-input writes the input of the last one, too.\n"
    "--crops runs another release on each box of a picture.\n"
    "Each thread but the first is tied to a CPU of its own; with --no-pin they share these CPUs.\n"
    "--beside runs another release again and again while this one is timed, in a process of its own with as many "
    "threads, on\n"
    "other CPUs if there are enough.\n"
    "--trust is the folder that says whose signed releases run here, /etc/edge-toolchain unless it is "
    "given;\n"
    "where it has no file `trusted`, any release does. --verify checks signatures and files, runs "
    "nothing, and\n"
    "tells what it found as JSON; --signed is a file to read in place of its own release.signed. With "
    "--floor, no\n"
    "release of this model with a sequence below N is taken any more, nor one below the minimum that "
    "its signers\n"
    "gave; 0 leaves it at that minimum.\n"
    "--profile has so many runs more, half of them watched, and tells what each call in them takes; "
    "--peak tells\n"
    "what multiply-adds and a triad reach on these CPUs, as JSON. --halves tells what kernels in half "
    "precision\n"
    "miss on the first device of a kind, such as opencl, as JSON.\n"
    "--period-us then runs the model once each period, beside other processes with --load; --attended prints "
    "the\n"
    "progress, and ends when there is something to read, or no more.\n"
    "--max-runs 0 leaves out the timing. Exit codes: 2 usage or unwritable output, 3 bad release "
    "or input,\n"
    "4 the library does not fit this device, 5 the model failed while it ran, 6 the outputs are not "
    "the\n"
    "expected ones, 7 the device does not take the release, 8 the release is below that floor itself, 9 the "
    "system\n"
    "does not allow --fifo or --mlock.\n";

namespace {

struct FlagOption {
  const char* name;
  bool Options::* field;
};

struct TextOption {
  const char* name;
  std::string Options::* field;
};

struct NumberOption {
  const char* name;
  int64_t Options::* field;
  int64_t least;
  int64_t most;
};

constexpr int64_t kMaxRuns = 10'000'000;
constexpr int64_t kMaxWatched = 10'000;
constexpr int64_t kMaxSequence = (int64_t{1} << 53) - 1;
constexpr int64_t kOneDayMs = 24 * 60 * 60 * 1000;

constexpr FlagOption kFlags[] = {{"--help", &Options::help},
                                 {"--version", &Options::version},
                                 {"--progress", &Options::progress},
                                 {"--no-pin", &Options::no_pin},
                                 {"--attended", &Options::attended},
                                 {"--fifo", &Options::fifo},
                                 {"--mlock", &Options::mlock},
                                 {"--sequence", &Options::sequence},
                                 {"--keep-input", &Options::keep_input},
                                 {"--peak", &Options::peak}};
constexpr TextOption kTexts[] = {{"--release", &Options::release},
                                 {"--inputs", &Options::inputs},
                                 {"--outputs", &Options::outputs},
                                 {"--report", &Options::report}};
constexpr TextOption kOptionalTexts[] = {{"--verify", &Options::verify},
                                         {"--halves", &Options::halves},
                                         {"--profile", &Options::profile},
                                         {"--signed", &Options::with},
                                         {"--variant", &Options::variant},
                                         {"--beside", &Options::beside},
                                         {"--beside-inputs", &Options::beside_inputs},
                                         {"--beside-variant", &Options::beside_variant},
                                         {"--trust", &Options::trust},
                                         {"--load", &Options::load},
                                         {"--sysfs", &Options::sysfs},
                                         {"--state-in", &Options::state_in},
                                         {"--state-out", &Options::state_out},
                                         {"--crops", &Options::crops},
                                         {"--objects", &Options::objects},
                                         {"--expected", &Options::expected},
                                         {"--tolerance", &Options::tolerance}};
constexpr NumberOption kNumbers[] = {{"--warmup-runs", &Options::warmup_runs, 0, kMaxRuns},
                                     {"--min-runs", &Options::min_runs, 1, kMaxRuns},
                                     {"--max-runs", &Options::max_runs, 0, kMaxRuns},
                                     {"--budget-ms", &Options::budget_ms, 0, kOneDayMs},
                                     {"--profile-runs", &Options::profile_runs, 1, kMaxWatched},
                                     {"--period-us", &Options::period_us, 100, 60'000'000},
                                     {"--for-ms", &Options::for_ms, 1, kOneDayMs},
                                     {"--deadline-us", &Options::deadline_us, 1, kOneDayMs * 1000},
                                     {"--samples", &Options::samples, 1, kMaxRuns},
                                     {"--beside-steps", &Options::beside_steps, 1, kMaxRuns},
                                     {"--threads", &Options::threads, 1, 1024},
                                     {"--floor", &Options::floor, 0, kMaxSequence}};

template <typename Row, size_t n>
const Row* FindRow(const Row (&table)[n], const std::string& name) {
  for (const Row& row : table) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

int64_t ParseNumber(const NumberOption& option, const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < option.least || value > option.most) {
    throw Fault(kExitUsage, std::string(option.name) + " must be an integer from " +
                                std::to_string(option.least) + " to " +
                                std::to_string(option.most) + ", not \"" + text + "\"");
  }
  return value;
}

void CheckPeriodic(const Options& options) {
  if (options.period_us > 0 && options.max_runs == 0) {
    throw Fault(kExitUsage, "--period-us needs timed runs to compare with, but --max-runs is 0");
  }
  const bool others = options.attended || options.fifo || options.mlock || options.deadline_us > 0;
  if (options.period_us == 0 && (others || !options.load.empty())) {
    throw Fault(kExitUsage, "--attended, --deadline-us, --fifo, --load and --mlock need --period-us");
  }
}

void CheckSequence(const Options& options) {
  if (options.sequence && options.samples == 0) {
    throw Fault(kExitUsage, "--sequence needs --samples, the number of its steps");
  }
  const bool keeps = !options.state_in.empty() || !options.state_out.empty();
  if (keeps && (!options.sequence || options.max_runs > 0)) {
    throw Fault(kExitUsage, "--state-in and --state-out need --sequence and --max-runs 0");
  }
  if (options.samples > 0 && !options.sequence && !options.expected.empty()) {
    throw Fault(kExitUsage, "--expected is for one sample or a --sequence, not for --samples");
  }
}

void CheckBeside(const Options& options) {
  if (options.beside.empty() != options.beside_inputs.empty()) {
    throw Fault(kExitUsage, "--beside and --beside-inputs need each other");
  }
  if (options.beside.empty() && (options.beside_steps > 0 || !options.beside_variant.empty())) {
    throw Fault(kExitUsage, "--beside-steps and --beside-variant need --beside");
  }
  if (!options.beside.empty() && (options.max_runs == 0 || options.period_us > 0 || !options.profile.empty())) {
    throw Fault(kExitUsage, "--beside is for timed runs: not for --max-runs 0, --period-us and --profile");
  }
}

void CheckComplete(const Options& options) {
  if (options.help || options.version || options.peak || !options.halves.empty()) return;
  if (options.floor >= 0 && options.verify.empty()) {
    throw Fault(kExitUsage, "--floor is given without --verify");
  }
  if (!options.verify.empty()) return;
  if (!options.with.empty()) throw Fault(kExitUsage, "--signed is given without --verify");
  for (const TextOption& option : kTexts) {
    if ((options.*option.field).empty()) {
      throw Fault(kExitUsage, std::string(option.name) + " is missing; see runner --help");
    }
  }
  CheckPeriodic(options);
  CheckSequence(options);
  CheckBeside(options);
  if ((options.keep_input || !options.crops.empty()) && options.objects.empty()) {
    throw Fault(kExitUsage, "--keep-input and --crops need --objects");
  }
  if (!options.objects.empty() && options.sequence) {
    throw Fault(kExitUsage, "--objects is for pictures and sounds, and --sequence for steps of a model with a state");
  }
  if (options.expected.empty() && !options.tolerance.empty()) {
    throw Fault(kExitUsage, "--tolerance is given without --expected");
  }
  if (options.outputs == options.report) {
    throw Fault(kExitUsage, "--outputs and --report name the same file", options.report);
  }
  if (!options.objects.empty() && (options.objects == options.report || options.objects == options.outputs)) {
    throw Fault(kExitUsage, "--objects names a file of another option", options.objects);
  }
  if (options.profile == options.report || options.profile == options.outputs) {
    throw Fault(kExitUsage, "--profile names a file of another option", options.profile);
  }
}

}  // namespace

Options ParseOptions(int argc, char** argv) {
  Options options;
  std::set<std::string> seen;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (!seen.insert(name).second) throw Fault(kExitUsage, name + " is given twice");
    if (const FlagOption* flag = FindRow(kFlags, name)) {
      options.*flag->field = true;
      continue;
    }
    const TextOption* text = FindRow(kTexts, name);
    if (!text) text = FindRow(kOptionalTexts, name);
    const NumberOption* number = FindRow(kNumbers, name);
    if (!text && !number) {
      throw Fault(kExitUsage, "unknown option \"" + name + "\"; see runner --help");
    }
    if (++i == argc) throw Fault(kExitUsage, name + " needs a value");
    if (text) options.*text->field = argv[i];
    if (number) options.*number->field = ParseNumber(*number, argv[i]);
  }
  CheckComplete(options);
  return options;
}

}  // namespace runner
