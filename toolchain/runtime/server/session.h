// One session: a process that serves one client, watched from here.
#ifndef BOARD_SERVER_SESSION_H_
#define BOARD_SERVER_SESSION_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "packets.h"
#include "sockets.h"

namespace board_server {

// A client that has said who it is.
struct Client {
  Descriptor socket;
  std::string peer;
  double timeout = 0;  // seconds; 0: none
};

// Memory of the server and of the session's process, so that the server knows what the client has
// heard so far, however the process ends.
struct SessionState {
  PacketMeter replies;
  std::atomic<bool> sending{false};   // within a call that sends
  std::atomic<bool> finished{false};  // the client has said good-bye
  // Since when nothing runs and nothing comes from the client, as Now() tells it; 0: it does.
  std::atomic<int64_t> idle_since{0};
};
static_assert(std::atomic<int64_t>::is_always_lock_free, "two processes share it");

constexpr int64_t kNever = INT64_MAX;

// The server's own, in seconds; 0: none.
struct Limits {
  double session = 0;
  double idle = 0;
};

class Session {
 public:
  // Makes the folder's process. Throws std::runtime_error if the system refuses; the client is then
  // still the caller's.
  Session(int number, Client* client, const std::string& folder, const Limits& limits);
  // Ends it, if it still runs.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int number() const { return number_; }
  int socket() const { return client_.socket.get(); }
  const std::string& folder() const { return folder_; }
  bool client_left() const { return client_left_; }

  // Ends it if its time is over, or if its client has left or is idle for too long. Returns when to
  // call this again; kNever if never.
  int64_t Update(int64_t now);
  // Ends it because the server's controller wants that.
  void Cut() { End(Reason::kCut); }

  // The client's end of the connection is closed: the process has a moment to notice.
  void OnClientLeft();

  // True once the process has ended, and with it all that it started; does not wait for it.
  bool Reap();

  // After its end: what went wrong in words for the client; empty if nothing did. Python tells the
  // causes apart by these words, see toolchain/rpc/server.py: they stay as they are.
  //   RPCSessionTimeoutError: session timeout of 5 s reached; ...
  //   RPCSessionTimeoutError: session limit of 5 s reached; ...
  //   RPCSessionTimeoutError: session idle limit of 5 s reached; ...
  //   the session was ended by the board server's controller
  //   the session's process was ended by signal 11 (SIGSEGV)
  //   the session's process was ended by signal 9 (SIGKILL: the system does this when memory ...)
  //   the session's process ended by itself with code 7
  std::string Problem() const;
  // Whether the client is at a point where it can be told.
  bool CanTell() const;
  Descriptor TakeSocket() { return std::move(client_.socket); }

 private:
  // Why this side ended it.
  enum class Reason { kNone, kTimeout, kLimit, kIdle, kLeft, kCut };

  void End(Reason reason);
  void Kill();

  int number_;
  Client client_;
  std::string folder_;
  SessionState* state_ = nullptr;
  pid_t pid_ = -1;
  int wait_status_ = 0;
  int64_t deadline_ = kNever;
  Reason at_deadline_ = Reason::kTimeout;
  Reason ended_ = Reason::kNone;
  bool client_left_ = false;
  double allowed_ = 0;
  double idle_limit_ = 0;
};

}  // namespace board_server

#endif  // BOARD_SERVER_SESSION_H_
