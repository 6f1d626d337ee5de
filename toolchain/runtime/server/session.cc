// See session.h.
#include "session.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

#include "channel.h"
#include "log.h"

namespace board_server {
namespace {

constexpr int64_t kGoodByeMs = 2000;

[[noreturn]] void FailWithErrno(const std::string& what) {
  throw std::runtime_error(what + ": " + strerror(errno));
}

std::string SignalName(int number) {
  switch (number) {
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    case SIGFPE: return "SIGFPE";
    case SIGILL: return "SIGILL: an instruction that this CPU does not have";
    case SIGABRT: return "SIGABRT";
    case SIGKILL: return "SIGKILL: the system does this when memory runs out";
    case SIGTERM: return "SIGTERM";
    case SIGTRAP: return "SIGTRAP";
    default: return strsignal(number);
  }
}

}  // namespace

Session::Session(int number, Client* client, const std::string& folder, double limit)
    : number_(number), folder_(folder), allowed_(client->timeout) {
  limited_by_server_ = limit > 0 && (allowed_ == 0 || limit < allowed_);
  if (limited_by_server_) allowed_ = limit;
  // Beyond a year a deadline is none; the product would not fit its type either.
  constexpr double kYear = 366.0 * 24 * 3600;
  if (allowed_ > 0 && allowed_ < kYear) deadline_ = Now() + static_cast<int64_t>(allowed_ * 1000);

  void* page = mmap(nullptr, sizeof(SessionState), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) FailWithErrno("the board has no memory for the session");
  state_ = new (page) SessionState;
  client_ = std::move(*client);
  const pid_t server = getpid();
  pid_ = fork();
  if (pid_ == 0) ServeAndExit(server, client_.socket.get(), folder_, state_);
  if (pid_ < 0) {
    const int error = errno;
    munmap(page, sizeof(SessionState));
    *client = std::move(client_);
    errno = error;
    FailWithErrno("the board cannot start a process for the session");
  }
  setpgid(pid_, pid_);  // the process does so too: whoever comes first
}

Session::~Session() {
  if (pid_ > 0) {
    Kill();
    waitpid(pid_, nullptr, 0);
  }
  munmap(state_, sizeof(SessionState));
}

void Session::Kill() { kill(-pid_, SIGKILL); }

void Session::Expire() {
  expired_ = !client_left_;
  deadline_ = kNever;
  Kill();
}

void Session::OnClientLeft() {
  client_left_ = true;
  deadline_ = std::min(deadline_, Now() + kGoodByeMs);
}

bool Session::Reap() {
  if (pid_ <= 0) return true;
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != pid_) {
    return false;
  }
  // What it started goes with it. As long as it is not waited for, nobody else has its number.
  Kill();
  waitpid(pid_, &wait_status_, 0);
  pid_ = -1;
  return true;
}

std::string Session::Problem() const {
  if (state_->finished || client_left_) return "";
  if (expired_ && limited_by_server_) {
    return "RPCSessionTimeoutError: session limit of " + Seconds(allowed_) +
           " s reached; it is the board server's own, see its --session-limit";
  }
  if (expired_) {
    return "RPCSessionTimeoutError: session timeout of " + Seconds(allowed_) +
           " s reached; the client set it when it asked for the session";
  }
  if (WIFSIGNALED(wait_status_)) {
    const int number = WTERMSIG(wait_status_);
    return "the session's process was ended by signal " + std::to_string(number) + " (" +
           SignalName(number) + ")";
  }
  return "the session's process ended by itself with code " +
         std::to_string(WEXITSTATUS(wait_status_));
}

bool Session::CanTell() const { return !state_->sending && state_->replies.AtBoundary(); }

}  // namespace board_server
