// A signal that ends the process says in one clear line what the process was busy with.
#ifndef RUNNER_CRASH_H_
#define RUNNER_CRASH_H_

#include <functional>
#include <string>

namespace runner {

// Turns deadly signals and std::terminate into "runner: <doing> failed: <signal> (<file>)" and the
// exit code of the step in progress (see ../model/stage.h), from now on. Replaces the handler of
// libtvm_ffi, which prints a stack trace.
void InstallCrashHandlers();

// Writes "runner: <what> (<file>)" to stderr as one line of printable text.
void PrintFault(const std::string& what, const std::string& file);

// Runs a function; what it throws is printed like that. Returns the exit code.
int PrintingFaults(const std::function<void()>& body);

}  // namespace runner

#endif  // RUNNER_CRASH_H_
