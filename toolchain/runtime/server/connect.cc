// See connect.h. Standard input and output may be one socket, pipes, or shared with others, so that
// their modes stay as they are: each call follows a poll() and moves what that vouches for.
#include "connect.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../model/fault.h"
#include "sockets.h"

namespace board_server {
namespace {

using edge::Fault;
using edge::kExitUsage;

constexpr size_t kCarriedAtOnce = 1 << 16;

[[noreturn]] void NoServer(const std::string& path, const std::string& why) {
  throw Fault(kExitUsage, "no board server to connect to: " + why, path);
}

void CheckFile(const std::string& path) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0) NoServer(path, strerror(errno));
  if (!S_ISSOCK(status.st_mode)) NoServer(path, "it is not a socket");
  if (status.st_uid != geteuid()) NoServer(path, "the socket belongs to another user");
}

Descriptor Reach(const std::string& path) {
  const Address address = UnixAddress(path);
  if (!IsAbstract(path)) CheckFile(path);
  Descriptor server(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!server.open() || connect(server.get(), address.get(), address.size) != 0) {
    NoServer(path, strerror(errno));
  }
  if (!PeerOf(server.get()).is_this_user) NoServer(path, "another user listens there");
  return server;
}

// One direction: what has been read and is still to be written. An end that is over is -1.
struct Way {
  int from;
  int to;
  std::string data = "";

  bool over() const { return from < 0 && data.empty(); }
};

// Takes what there is; the end of it, and an error, end the direction.
void Take(Way* way) {
  char buffer[kCarriedAtOnce];
  const ssize_t count = read(way->from, buffer, sizeof(buffer));
  if (count > 0) way->data.assign(buffer, static_cast<size_t>(count));
  else if (count == 0 || (errno != EINTR && errno != EAGAIN)) way->from = -1;
}

// False if nobody takes it any more.
bool Give(Way* way) {
  // What poll() calls writable has room for this much.
  ssize_t count = send(way->to, way->data.data(), way->data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count < 0 && errno == ENOTSOCK) {
    count = write(way->to, way->data.data(), std::min<size_t>(way->data.size(), PIPE_BUF));
  }
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  way->data.erase(0, static_cast<size_t>(count));
  return true;
}

// Nobody hears the server's answers, so that it is over. What was already said gets there, if the
// server takes it now: a good-bye, mostly.
void SayTheRest(Way* up) {
  pollfd polled = {up->from, POLLIN, 0};
  while (!up->over()) {
    if (!up->data.empty()) {
      const size_t before = up->data.size();
      if (!Give(up) || up->data.size() == before) return;
    } else if (poll(&polled, 1, 0) > 0) {
      Take(up);
    } else {
      return;
    }
  }
}

class Bridge {
 public:
  explicit Bridge(int server) : up_{STDIN_FILENO, server}, down_{server, STDOUT_FILENO} {}

  void Carry() {
    while (!over_) Step();
  }

 private:
  // An end without anything to do is not asked for: poll() would tell its end again and again. That
  // nobody reads standard output is told always.
  void Step() {
    pollfd ends[] = {{up_.data.empty() ? up_.from : -1, POLLIN, 0},
                     {up_.data.empty() ? -1 : up_.to, POLLOUT, 0},
                     {down_.data.empty() ? down_.from : -1, POLLIN, 0},
                     {down_.to, static_cast<short>(down_.data.empty() ? 0 : POLLOUT), 0},
                     {down_.over() ? up_.to : -1, 0, 0}};
    if (poll(ends, 5, -1) < 0) {
      over_ = errno != EINTR;
      return;
    }
    if (ends[0].revents != 0) Take(&up_);
    if (ends[1].revents != 0 && !Give(&up_)) up_ = {-1, up_.to};
    if (ends[2].revents != 0) Take(&down_);
    if ((ends[3].revents & POLLOUT) != 0 && !Give(&down_)) return Leave();
    if ((ends[3].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) return Leave();
    if ((ends[4].revents & (POLLERR | POLLHUP)) != 0) over_ = true;
    PassEnds();
  }

  void Leave() {
    SayTheRest(&up_);
    over_ = true;
  }

  void PassEnds() {
    if (up_.over() && !up_ended_) {
      shutdown(up_.to, SHUT_WR);
      up_ended_ = true;
    }
    if (down_.over() && down_.to >= 0) {
      shutdown(down_.to, SHUT_WR);  // where it is the same socket as standard input
      close(down_.to);
      down_.to = -1;
    }
    over_ = over_ || (up_.over() && down_.over());
  }

  Way up_;
  Way down_;
  bool up_ended_ = false;
  bool over_ = false;
};

}  // namespace

void Connect(const std::string& path) {
  signal(SIGPIPE, SIG_IGN);
  const Descriptor server = Reach(path);
  Bridge(server.get()).Carry();
}

}  // namespace board_server
