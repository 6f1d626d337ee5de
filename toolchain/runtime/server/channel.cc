// See channel.h. TVM's own loop reads and writes through the two functions here instead of the
// socket, so that the server can see where in the stream of replies a dead session stopped.
#include "channel.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

#include "functions.h"
#include "log.h"
#include "measuring.h"
#include "work_folder.h"

namespace board_server {
namespace {

using tvm::ffi::Bytes;
using tvm::ffi::Function;

constexpr int64_t kMostAtOnce = 1 << 20;

// Everything but stdin, stdout, stderr and the client's connection: the server's other sockets must
// not stay open for as long as the session lasts.
void CloseOthers(int kept) {
  std::vector<std::string> names;
  if (!ListNames("/proc/self/fd", &names)) LogErrno("cannot close the server's files", errno);
  for (const std::string& name : names) {
    const int number = atoi(name.c_str());
    if (number > STDERR_FILENO && number != kept) close(number);
  }
}

void ResetSignals() {
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGCHLD, SIGTERM, SIGINT, SIGHUP}) {
    signal(number, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// What a model prints goes to the log, and it finds nothing to read.
void RedirectStandardStreams() {
  dup2(STDERR_FILENO, STDOUT_FILENO);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
}

void Isolate(pid_t server, int socket, const std::string& folder) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != server) _exit(1);  // it died before the line above
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  ResetSignals();
  RedirectStandardStreams();
  CloseOthers(socket);
  if (chdir(folder.c_str()) != 0) LogErrno("cannot enter " + folder, errno);
  setenv("TMPDIR", folder.c_str(), 1);
}

int64_t Send(int socket, SessionState* state, const char* data, size_t size) {
  state->sending = true;
  ssize_t count = -1;
  do {
    count = send(socket, data, size, MSG_NOSIGNAL);
  } while (count < 0 && errno == EINTR);
  if (count > 0) state->replies.Add(data, static_cast<size_t>(count));
  state->sending = false;
  return count;
}

Bytes Receive(int socket, SessionState* state, int64_t size) {
  state->idle_since = Now();
  std::string data(static_cast<size_t>(std::min(size, kMostAtOnce)), '\0');
  ssize_t count = -1;
  do {
    count = recv(socket, data.data(), data.size(), 0);
  } while (count < 0 && errno == EINTR);
  state->idle_since = 0;
  data.resize(count > 0 ? static_cast<size_t>(count) : 0);  // a lost client is one that has left
  return Bytes(std::move(data));
}

void Serve(int socket, const std::string& folder, SessionState* state) {
  RegisterFunctions(folder);
  const Function send = Function::FromTyped([socket, state](Bytes bytes) {
    return Send(socket, state, bytes.data(), bytes.size());
  });
  const Function receive = Function::FromTyped(
      [socket, state](int64_t size) { return Receive(socket, state, size); });
  Function::GetGlobalRequired("rpc.ServerLoop")(send, receive);
  state->finished = true;
}

}  // namespace

void ServeAndExit(pid_t server, int socket, const std::string& folder, SessionState* state) {
  try {
    Isolate(server, socket, folder);
    Serve(socket, folder, state);
    // Without destructors: those of a model's library may crash.
    _exit(0);
  } catch (const tvm::ffi::Error& error) {
    Log("session failed: " + error.kind() + ": " + Printable(error.message()));
  } catch (const std::exception& error) {
    Log("session failed: " + Printable(error.what()));
  }
  _exit(1);
}

}  // namespace board_server
