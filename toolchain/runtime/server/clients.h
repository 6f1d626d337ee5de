// Connections that are not, or no longer, a session: clients that say who they are, that wait for
// their turn, and that are told why their session is over.
#ifndef BOARD_SERVER_CLIENTS_H_
#define BOARD_SERVER_CLIENTS_H_

#include <cstdint>
#include <deque>
#include <list>
#include <string>

#include "handshake.h"
#include "session.h"
#include "sockets.h"

namespace board_server {

// Clients in their handshake, the oldest first.
class Newcomers {
 public:
  // Takes every connection that waits at the listener, except those of other users at a Unix
  // socket. False if the system has no room for more.
  bool AcceptFrom(int listener);
  // Drops those that took too long; returns when the next one will have.
  int64_t DropLate(int64_t now);
  std::list<Handshake>& all() { return all_; }
  const std::list<Handshake>& all() const { return all_; }

 private:
  std::list<Handshake> all_;
};

// Clients that were told why their session is over. Their connection stays open for a while, and
// what they still send is taken: closing it at once would take the message away from them.
class Dismissed {
 public:
  void Add(Descriptor socket, const std::string& message);
  void OnReady(int socket);
  int64_t DropLate(int64_t now);

  struct One {
    Descriptor socket;
    int64_t deadline;
    size_t taken = 0;
  };
  const std::list<One>& all() const { return all_; }

 private:
  std::list<One> all_;
};

// Clients whose session is still to come, in order.
class WaitingLine {
 public:
  // False, and the client is still the caller's, if the line is too long.
  bool Add(Client* client);
  // Drops a client that has left.
  void OnHangUp(int socket);
  // Sends all of them away.
  void Refuse();
  bool empty() const { return all_.empty(); }
  Client TakeFirst();
  const std::deque<Client>& all() const { return all_; }

 private:
  std::deque<Client> all_;
};

}  // namespace board_server

#endif  // BOARD_SERVER_CLIENTS_H_
