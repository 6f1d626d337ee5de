// See crash.h. Everything a handler touches is prepared beforehand: in a handler only
// async-signal-safe calls are allowed.
#include "crash.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "../model/stage.h"

namespace runner {
namespace {

constexpr size_t kMaxLine = 2000;

int stage_code = edge::kExitUsage;

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

std::string InBrackets(const std::string& file) {
  return file.empty() ? "" : " (" + edge::OneLine(file) + ")";
}

void PrepareLine(const edge::Stage& stage) {
  stage_code = stage.code;
  snprintf(crash_head, sizeof(crash_head), "runner: %s failed: ", stage.doing.c_str());
  snprintf(crash_tail, sizeof(crash_tail), "%s\n", InBrackets(stage.file).c_str());
}

}  // namespace

void InstallCrashHandlers() {
  PrepareLine(edge::CurrentStage());
  edge::on_stage = PrepareLine;
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
  WriteText(("runner: " + edge::OneLine(what) + InBrackets(file) + "\n").c_str());
}

int PrintingFaults(const std::function<void()>& body) {
  try {
    body();
    return edge::kExitOk;
  } catch (const edge::Fault& fault) {
    PrintFault(fault.what(), fault.file());
    return fault.code();
  } catch (const std::exception& error) {
    // An error of the standard library: the step in progress says what it means.
    const edge::Stage& stage = edge::CurrentStage();
    PrintFault(stage.doing + " failed: " + error.what(), stage.file);
    return stage.code;
  }
}

}  // namespace runner
