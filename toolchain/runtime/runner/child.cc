// See child.h.
#include "child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "../model/fault.h"

namespace runner {

pid_t StartChild(const char* what, const std::function<int()>& body) {
  const pid_t parent = getpid();
  const pid_t process = fork();
  if (process < 0) {
    throw edge::Fault(edge::kExitRunFailed, std::string(what) + " cannot be started: " + strerror(errno));
  }
  if (process > 0) return process;
  // Nothing may let it outlive its parent: not a kill, and not a parent that has ended before this line.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  // Whoever reads the streams waits for all who hold them.
  for (int stream = 0; stream < 3; ++stream) nowhere < 0 ? close(stream) : dup2(nowhere, stream);
  _exit(body());
}

bool IsRunning(pid_t process) { return waitpid(process, nullptr, WNOHANG) == 0; }

int EndChild(pid_t process) {
  int status = 0;
  kill(process, SIGKILL);
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

void AwaitClosed(int pipe) {
  char byte;
  while (read(pipe, &byte, 1) < 0 && errno == EINTR) {
  }
}

}  // namespace runner
