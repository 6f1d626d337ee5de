// See log.h.
#include "log.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace board_server {
namespace {

constexpr size_t kMaxShown = 80;

std::string TimeStamp() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts = {};
  gmtime_r(&now.tv_sec, &parts);
  char day[32], text[48];
  strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &parts);
  snprintf(text, sizeof(text), "%s.%03dZ", day, static_cast<int>(now.tv_nsec / 1000000));
  return text;
}

}  // namespace

void Log(const std::string& text) {
  // Whoever reads stderr may not keep up, or not read at all: a server that waits for that serves
  // nobody. A pipe that can be written to takes a whole line.
  pollfd room = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&room, 1, 0) != 1) return;
  // One call, so that lines of the server and of a session do not mix. Nothing is left to do when
  // stderr is gone.
  const std::string line = TimeStamp() + " " + text + "\n";
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

void LogErrno(const std::string& what, int error) { Log(what + ": " + strerror(error)); }

int64_t Now() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

std::string Printable(const std::string& text) {
  std::string shown;
  for (unsigned char c : text.substr(0, kMaxShown)) {
    shown.push_back(c < ' ' || c > '~' ? '?' : static_cast<char>(c));
  }
  return text.size() > kMaxShown ? shown + "..." : shown;
}

std::string Seconds(double seconds) {
  char text[32];
  snprintf(text, sizeof(text), "%g", seconds);
  return text;
}

}  // namespace board_server
