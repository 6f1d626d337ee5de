// See control.h. The descriptors stay in blocking mode, which is shared with whoever else has the
// terminal or the pipe. Each call follows a poll() instead, and moves what that vouches for.
#include "control.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "../model/fault.h"
#include "log.h"

namespace board_server {
namespace {

constexpr size_t kMaxControlLine = 1024;
constexpr size_t kMostUnread = 1 << 16;

bool TakesOutput(int file) {
  pollfd polled = {file, POLLOUT, 0};
  return poll(&polled, 1, 0) > 0;
}

bool IsTransient(int error) { return error == EAGAIN || error == EINTR; }

}  // namespace

ControlLine ParseControlLine(const std::string& line,
                             std::string (*key_problem)(const std::string&)) {
  const size_t blank = line.find(' ');
  const std::string order = line.substr(0, blank);
  const std::string rest = blank == std::string::npos ? "" : line.substr(blank + 1);
  ControlLine parsed;
  if (line.size() > kMaxControlLine) parsed.problem = "the line is too long";
  else if (line == "withdraw") parsed.order = ControlLine::Order::kWithdraw;
  else if (line == "cut") parsed.order = ControlLine::Order::kCut;
  else if (order != "key") parsed.problem = "there is no order \"" + Printable(line) + "\"";
  else if (const std::string problem = key_problem(rest); !problem.empty()) {
    parsed.problem = "the key " + problem;
  } else parsed.key = rest;
  return parsed;
}

Control::Control() {
  if (fcntl(STDIN_FILENO, F_GETFD) < 0 || fcntl(STDOUT_FILENO, F_GETFD) < 0) {
    throw edge::Fault(edge::kExitUsage, "--control needs standard input and output");
  }
}

bool Control::wants_input() const { return !controller_gone_ && out_.size() < kMostUnread; }

std::vector<std::string> Control::TakeLines() {
  char buffer[4096];
  const ssize_t count = read(input(), buffer, sizeof(buffer));
  std::vector<std::string> lines;
  if (count == 0 || (count < 0 && !IsTransient(errno))) controller_gone_ = true;
  for (ssize_t i = 0; i < count; ++i) {
    if (buffer[i] == '\n') {
      lines.push_back(std::move(in_));
      in_.clear();
    } else if (in_.size() <= kMaxControlLine) {
      in_.push_back(buffer[i]);
    }
  }
  return lines;
}

void Control::Answer(const std::string& line) {
  out_ += line + "\n";
  Flush();
}

void Control::Tell(const std::string& event) {
  if (out_.size() < kMostUnread) Answer(event);
}

void Control::Flush() {
  while (!out_.empty() && TakesOutput(output())) {
    // A pipe that poll() calls writable has room for this much.
    const ssize_t count = write(output(), out_.data(), std::min<size_t>(out_.size(), PIPE_BUF));
    if (count < 0 && IsTransient(errno)) return;
    if (count < 0) {
      controller_gone_ = true;
      out_.clear();
      return;
    }
    out_.erase(0, static_cast<size_t>(count));
  }
}

}  // namespace board_server
