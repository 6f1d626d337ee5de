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
};

constexpr int64_t kNever = INT64_MAX;

class Session {
 public:
  // Makes the folder's process. `limit` is the server's own in seconds; 0: none. Throws
  // std::runtime_error if the system refuses; the client is then still the caller's.
  Session(int number, Client* client, const std::string& folder, double limit);
  // Ends it, if it still runs.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int number() const { return number_; }
  int socket() const { return client_.socket.get(); }
  const std::string& folder() const { return folder_; }
  bool client_left() const { return client_left_; }

  // When Expire is due; kNever if it is not.
  int64_t deadline() const { return deadline_; }
  void Expire();

  // The client's end of the connection is closed: the process has a moment to notice.
  void OnClientLeft();

  // True once the process has ended; does not wait for it.
  bool Reap();

  // After its end: what went wrong in words for the client; empty if nothing did. Python tells the
  // causes apart by these words, see toolchain/board_server.py: they stay as they are.
  //   RPCSessionTimeoutError: session timeout of 5 s reached; ...
  //   RPCSessionTimeoutError: session limit of 5 s reached; ...
  //   the session's process was ended by signal 11 (SIGSEGV)
  //   the session's process was ended by signal 9 (SIGKILL: the system does this when memory ...)
  //   the session's process ended by itself with code 7
  std::string Problem() const;
  // Whether the client is at a point where it can be told.
  bool CanTell() const;
  Descriptor TakeSocket() { return std::move(client_.socket); }

 private:
  void Kill();

  int number_;
  Client client_;
  std::string folder_;
  SessionState* state_ = nullptr;
  pid_t pid_ = -1;
  int wait_status_ = 0;
  int64_t deadline_ = kNever;
  bool expired_ = false;
  bool client_left_ = false;
  double allowed_ = 0;
  bool limited_by_server_ = false;
};

}  // namespace board_server

#endif  // BOARD_SERVER_SESSION_H_
