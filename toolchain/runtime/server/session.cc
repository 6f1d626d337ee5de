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
#include "descendants.h"
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

Session::Session(int number, Client* client, const std::string& folder, const Limits& limits)
    : number_(number), folder_(folder), allowed_(client->timeout), idle_limit_(limits.idle) {
  if (limits.session > 0 && (allowed_ == 0 || limits.session < allowed_)) {
    allowed_ = limits.session;
    at_deadline_ = Reason::kLimit;
  }
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
    EndDescendants();
  }
  munmap(state_, sizeof(SessionState));
}

void Session::Kill() { kill(-pid_, SIGKILL); }

void Session::End(Reason reason) {
  if (ended_ != Reason::kNone) return;
  ended_ = reason;
  if (reason == Reason::kLeft) Log("ending what a client that has left began");
  Kill();
}

int64_t Session::Update(int64_t now) {
  if (ended_ != Reason::kNone) return kNever;
  int64_t next = deadline_;
  if (idle_limit_ > 0 && !client_left_) {
    const int64_t since = state_->idle_since;
    const int64_t idle_end = (since == 0 ? now : since) + static_cast<int64_t>(idle_limit_ * 1000);
    if (idle_end <= now) End(Reason::kIdle);
    next = std::min(next, idle_end);
  }
  if (deadline_ <= now) End(at_deadline_);
  return ended_ == Reason::kNone ? next : kNever;
}

void Session::OnClientLeft() {
  if (client_left_) return;
  client_left_ = true;
  at_deadline_ = Reason::kLeft;
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
  EndDescendants();
  return true;
}

std::string Session::Problem() const {
  if (state_->finished || client_left_) return "";
  const std::string expired = "RPCSessionTimeoutError: session ";
  switch (ended_) {
    case Reason::kTimeout:
      return expired + "timeout of " + Seconds(allowed_) +
             " s reached; the client set it when it asked for the session";
    case Reason::kLimit:
      return expired + "limit of " + Seconds(allowed_) +
             " s reached; it is the board server's own, see its --session-limit";
    case Reason::kIdle:
      return expired + "idle limit of " + Seconds(idle_limit_) +
             " s reached; it is the board server's own, see its --idle-limit";
    case Reason::kCut: return "the session was ended by the board server's controller";
    case Reason::kLeft:
    case Reason::kNone: break;
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
