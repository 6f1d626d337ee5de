// What the process is busy with, so that a signal or a foreign exception ends in one clear line.
#ifndef RUNNER_CRASH_H_
#define RUNNER_CRASH_H_

#include <string>

#include "fault.h"

namespace runner {

// The step in progress: the exit code of its failure, a phrase ("loading the library"), its file.
void EnterStage(ExitCode code, const std::string& doing, const std::string& file);

ExitCode StageCode();
const std::string& StageDoing();
const std::string& StageFile();

// Turns deadly signals and std::terminate into "runner: <doing> failed: <signal> (<file>)" and the
// stage's exit code. Replaces the handler of libtvm_ffi, which prints a stack trace.
void InstallCrashHandlers();

// Writes "runner: <what> (<file>)" to stderr as one line of printable text.
void PrintFault(const std::string& what, const std::string& file);

}  // namespace runner

#endif  // RUNNER_CRASH_H_
