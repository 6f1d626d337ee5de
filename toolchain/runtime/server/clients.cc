// See clients.h.
#include "clients.h"

#include <algorithm>
#include <cerrno>

#include "log.h"
#include "packets.h"

namespace board_server {
namespace {

constexpr size_t kMostNewcomers = 32, kMostDismissed = 16, kMostWaiting = 64;
constexpr int64_t kHandshakeMs = 5000, kDismissedMs = 60000;
constexpr size_t kMostTaken = size_t{256} << 20;

// Drops the front of a list in order of deadlines for as long as it is late.
template <typename List, typename DeadlineOf, typename Farewell>
int64_t DropFront(List* list, int64_t now, DeadlineOf deadline_of, Farewell farewell) {
  while (!list->empty() && deadline_of(list->front()) <= now) {
    farewell(list->front());
    list->pop_front();
  }
  return list->empty() ? kNever : deadline_of(list->front());
}

// What the log calls who is at a Unix socket; nothing, after a line in the log, for another user.
std::string PeerName(int socket) {
  const Peer peer = PeerOf(socket);
  if (peer.is_this_user) return "process " + std::to_string(peer.process);
  Log("refusing process " + std::to_string(peer.process) + ": it is user " +
      std::to_string(peer.user) + "'s");
  return "";
}

}  // namespace

bool Newcomers::AcceptFrom(int listener) {
  const bool by_path = LocalAddress(listener).IsUnix();
  while (true) {
    Address from;
    from.size = sizeof(from.storage);
    Descriptor socket(
        accept4(listener, reinterpret_cast<sockaddr*>(&from.storage), &from.size, SOCK_CLOEXEC));
    if (!socket.open()) {
      const bool no_room =
          errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (no_room) LogErrno("cannot accept a connection", errno);
      return !no_room;
    }
    const std::string peer = by_path ? PeerName(socket.get()) : from.Text();
    if (peer.empty()) continue;
    if (!by_path) SetConnectionOptions(socket.get());
    if (all_.size() == kMostNewcomers) {
      Log("dropping " + all_.front().peer() + ": too many connections without a key");
      all_.pop_front();
    }
    all_.emplace_back(std::move(socket), peer, Now() + kHandshakeMs);
  }
}

int64_t Newcomers::DropLate(int64_t now) {
  return DropFront(
      &all_, now, [](const Handshake& one) { return one.deadline(); },
      [](const Handshake& one) { Log("dropping " + one.peer() + ": it sent no key in time"); });
}

void Dismissed::Add(Descriptor socket, const std::string& message) {
  if (!SendWhole(socket.get(), ExceptionPacket(message))) return;
  shutdown(socket.get(), SHUT_WR);
  if (all_.size() == kMostDismissed) all_.pop_front();
  all_.push_back({std::move(socket), Now() + kDismissedMs});
}

void Dismissed::OnReady(int socket) {
  const auto found = std::find_if(all_.begin(), all_.end(), [socket](const One& one) {
    return one.socket.get() == socket;
  });
  if (found == all_.end()) return;
  char buffer[1 << 16];
  const int count = Receive(socket, buffer, sizeof(buffer));
  if (count > 0) found->taken += static_cast<size_t>(count);
  if (count == 0 || found->taken > kMostTaken) all_.erase(found);
}

int64_t Dismissed::DropLate(int64_t now) {
  return DropFront(
      &all_, now, [](const One& one) { return one.deadline; }, [](const One&) {});
}

bool WaitingLine::Add(Client* client) {
  if (all_.size() == kMostWaiting) return false;
  all_.push_back(std::move(*client));
  return true;
}

void WaitingLine::OnHangUp(int socket) {
  const auto found = std::find_if(all_.begin(), all_.end(), [socket](const Client& one) {
    return one.socket.get() == socket;
  });
  if (found == all_.end()) return;
  Log(found->peer + " left before its turn");
  all_.erase(found);
}

void WaitingLine::Refuse() {
  for (const Client& one : all_) {
    Log("refusing " + one.peer + ": its key is no longer valid");
    SendWhole(one.socket.get(), Int32Bytes(kRpcMismatch));
  }
  all_.clear();
}

Client WaitingLine::TakeFirst() {
  Client client = std::move(all_.front());
  all_.pop_front();
  return client;
}

}  // namespace board_server
