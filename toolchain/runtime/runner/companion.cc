// See companion.h.
#include "companion.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "../model/device.h"
#include "../model/fault.h"
#include "../model/stage.h"
#include "../threads/pool.h"
#include "child.h"
#include "crash.h"
#include "open.h"
#include "samples.h"
#include "timing.h"

namespace runner {
namespace {

using edge::Fault;
using edge::kExitRunFailed;

constexpr char kReady = '+';
constexpr size_t kLongest = 4096;
const std::string kPrefix = "runner: ";  // of this program's errors

// As many CPUs as there are in `taken`: other ones, or the same.
std::vector<int> CpusBeside(const std::vector<int>& taken) {
  std::vector<int> others;
  for (const int cpu : edge::ChooseCpus(0)) {
    if (std::find(taken.begin(), taken.end(), cpu) == taken.end()) others.push_back(cpu);
  }
  if (others.size() < taken.size()) return taken;
  others.resize(taken.size());
  return others;
}

void RunForEver(const Options& options, const std::vector<int>& cpus, int gate) {
  edge::StayOn(cpus);
  edge_model* model = OpenRelease(options, options.beside, options.beside_variant);
  edge::EnterStage(edge::kExitInput, "reading the inputs", options.beside_inputs);
  const Order order = options.beside_steps > 0 ? Order::kSequence : Order::kAlone;
  Samples samples(model, options.beside_inputs, options.beside_steps, order);
  samples.Feed(0);
  TimeOneRun(model);
  if (write(STDERR_FILENO, &kReady, 1) != 1) return;
  AwaitClosed(gate);
  for (;;) {
    samples.FeedNext();
    TimeOneRun(model);
  }
}

// What comes out of a pipe until its end, or one byte of it.
std::string ReadText(int pipe, size_t most) {
  std::string text;
  char byte;
  for (ssize_t got = 1; got != 0 && text.size() < most;) {
    got = read(pipe, &byte, 1);
    if (got == 1) text.push_back(byte);
    if (got < 0 && errno != EINTR) break;
  }
  return text;
}

}  // namespace

Companion::Companion(const Options& options, const std::vector<int>& cpus) {
  if (options.beside.empty()) return;
  if (pipe2(gate_, O_CLOEXEC) != 0 || pipe2(answers_, O_CLOEXEC) != 0) {
    throw Fault(kExitRunFailed, "the model beside cannot be started");
  }
  const std::vector<int> own = CpusBeside(cpus);
  process_ = StartChild("the model beside", [&] {
    close(gate_[1]);
    dup2(answers_[1], STDERR_FILENO);
    close(answers_[0]);
    close(answers_[1]);
    return PrintingFaults([&] { RunForEver(options, own, gate_[0]); });
  });
  close(gate_[0]);
  close(answers_[1]);
}

void Companion::Begin() {
  if (process_ == 0) return;
  const std::string first = ReadText(answers_[0], 1);
  if (first != std::string(1, kReady)) {
    const std::string text = first + ReadText(answers_[0], kLongest);
    Fail(text, EndChild(process_));
  }
  close(gate_[1]);
  gate_[1] = -1;
}

void Companion::End() {
  if (process_ == 0) return;
  int status = 0;
  if (waitpid(process_, &status, WNOHANG) != 0) Fail(ReadText(answers_[0], kLongest), status);
  EndChild(process_);
  process_ = 0;
}

void Companion::Fail(const std::string& text, int status) {
  process_ = 0;
  const std::string line = edge::OneLine(text);
  const std::string why = line.empty() ? "it was ended from outside; the device may lack memory"
                          : line.compare(0, kPrefix.size(), kPrefix) == 0 ? line.substr(kPrefix.size()) : line;
  const int code = WIFEXITED(status) && WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : kExitRunFailed;
  throw Fault(static_cast<edge::ExitCode>(code), "the model beside: " + why);
}

Companion::~Companion() {
  if (process_ != 0) EndChild(process_);
}

}  // namespace runner
