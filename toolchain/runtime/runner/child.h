// Processes of the same program that work beside it, and never outlive it.
#ifndef RUNNER_CHILD_H_
#define RUNNER_CHILD_H_

#include <sys/types.h>

#include <functional>

namespace runner {

// Runs a function in a new process, which ends with the code that it returns, and whose standard streams lead nowhere.
// This process may not have other threads yet. Throws kExitRunFailed, "<what> cannot be started".
pid_t StartChild(const char* what, const std::function<int()>& body);

// False only once: that forgets the process.
bool IsRunning(pid_t process);

// Returns how it ended, as waitpid does; it is killed if it runs.
int EndChild(pid_t process);

// Waits until the other end of a pipe is closed.
void AwaitClosed(int pipe);

}  // namespace runner

#endif  // RUNNER_CHILD_H_
