// Stages and crash handlers. Everything a handler touches is prepared beforehand: in a handler only
// async-signal-safe calls are allowed.
#include "crash.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

namespace runner {
namespace {

constexpr size_t kMaxLine = 2000;

ExitCode stage_code = kExitUsage;
std::string stage_doing = "starting";
std::string stage_file;

// The two halves of the line around the signal's name, as plain bytes.
char crash_head[kMaxLine];
char crash_tail[kMaxLine];

const int kDeadlySignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS};

const char* SignalName(int number) {
  switch (number) {
    case SIGSEGV: return "SIGSEGV, an invalid memory access";
    case SIGBUS: return "SIGBUS, a file shrank or memory is misaligned";
    case SIGFPE: return "SIGFPE, an arithmetic fault";
    case SIGILL: return "SIGILL, an instruction that this CPU does not have";
    case SIGABRT: return "SIGABRT, the code gave up";
    default: return "a deadly signal";
  }
}

void WriteText(const char* text) {
  // Nothing is left to do when stderr is gone.
  if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

void OnCrash(int number) {
  WriteText(crash_head);
  WriteText(SignalName(number));
  WriteText(crash_tail);
  _exit(stage_code);
}

// Control characters come from damaged files and from multi-line messages; the report is one line.
std::string OneLine(const std::string& text) {
  std::string line;
  for (unsigned char c : text) {
    const bool blank = c <= ' ' || c == 127;
    if (blank && (line.empty() || line.back() == ' ')) continue;
    line.push_back(blank ? ' ' : static_cast<char>(c));
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  if (line.size() > kMaxLine / 2) {
    size_t end = kMaxLine / 2;
    while (end > 0 && (line[end] & 0xC0) == 0x80) --end;  // not within a UTF-8 character
    line = line.substr(0, end) + "...";
  }
  return line;
}

std::string InBrackets(const std::string& file) {
  return file.empty() ? "" : " (" + OneLine(file) + ")";
}

}  // namespace

void EnterStage(ExitCode code, const std::string& doing, const std::string& file) {
  stage_code = code;
  stage_doing = doing;
  stage_file = file;
  snprintf(crash_head, sizeof(crash_head), "runner: %s failed: ", doing.c_str());
  snprintf(crash_tail, sizeof(crash_tail), "%s\n", InBrackets(file).c_str());
}

ExitCode StageCode() { return stage_code; }
const std::string& StageDoing() { return stage_doing; }
const std::string& StageFile() { return stage_file; }

void InstallCrashHandlers() {
  // A stack of its own for the handler, since a stack overflow is one of the crashes.
  static char stack[64 * 1024];
  stack_t alternate = {};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof(stack);
  sigaltstack(&alternate, nullptr);

  struct sigaction action = {};
  action.sa_handler = OnCrash;
  action.sa_flags = SA_ONSTACK;
  for (int number : kDeadlySignals) sigaction(number, &action, nullptr);
  // A file size limit or a closed stderr is an error of write(), not a reason to die.
  signal(SIGXFSZ, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  // The default handler of std::terminate prints lines of its own before it aborts.
  std::set_terminate([] { abort(); });
}

void PrintFault(const std::string& what, const std::string& file) {
  WriteText(("runner: " + OneLine(what) + InBrackets(file) + "\n").c_str());
}

}  // namespace runner
