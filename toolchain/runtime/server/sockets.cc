// See sockets.h. Sockets stay in blocking mode, since the mode is shared with the process that
// serves the session; calls of this process ask for MSG_DONTWAIT one by one.
#include "sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "../model/fault.h"

namespace board_server {
namespace {

using edge::Fault;
using edge::kExitUsage;

constexpr int kBacklog = 128;
constexpr size_t kPathAt = offsetof(sockaddr_un, sun_path);

void SetPort(Address* address, int port) {
  // The port is at the same place in both families.
  reinterpret_cast<sockaddr_in*>(&address->storage)->sin_port = htons(static_cast<uint16_t>(port));
}

void SetInt(int socket, int level, int name, int value) {
  // A kernel that lacks one of these options is no reason to give up.
  if (setsockopt(socket, level, name, &value, sizeof(value)) != 0) return;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    Close();
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

void Descriptor::Close() {
  if (number_ >= 0) close(number_);
  number_ = -1;
}

bool Address::IsLoopback() const {
  if (IsUnix()) return true;
  if (storage.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  }
  const auto* four = reinterpret_cast<const sockaddr_in*>(&storage);
  return (ntohl(four->sin_addr.s_addr) >> 24) == 127;
}

int Address::port() const {
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

std::string Address::Text() const {
  if (IsUnix()) {
    const char* path = reinterpret_cast<const sockaddr_un*>(&storage)->sun_path;
    if (size <= kPathAt || path[0] != '\0') return "unix:" + std::string(path);
    return "unix:@" + std::string(path + 1, size - kPathAt - 1);
  }
  char host[INET6_ADDRSTRLEN] = "?";
  const bool six = storage.ss_family == AF_INET6;
  const void* raw = six ? static_cast<const void*>(
                              &reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr)
                        : &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr;
  inet_ntop(storage.ss_family, raw, host, sizeof(host));
  const std::string name = six ? "[" + std::string(host) + "]" : host;
  return name + ":" + std::to_string(port());
}

Address Resolve(const std::string& option, const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failure != 0) {
    throw Fault(kExitUsage, option + ": no address of \"" + host + "\": " + gai_strerror(failure));
  }
  Address address;
  memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  freeaddrinfo(found);
  SetPort(&address, port);
  return address;
}

bool IsAbstract(const std::string& path) { return !path.empty() && path[0] == '@'; }

bool FitsUnixAddress(const std::string& path) {
  return path.size() < sizeof(sockaddr_un::sun_path);
}

Address UnixAddress(const std::string& path) {
  if (!FitsUnixAddress(path)) {
    throw Fault(kExitUsage, "the path of the socket has more than " +
                                std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes",
                path);
  }
  Address address;
  auto* unix_address = reinterpret_cast<sockaddr_un*>(&address.storage);
  unix_address->sun_family = AF_UNIX;
  memcpy(unix_address->sun_path, path.c_str(), path.size() + 1);
  address.size = sizeof(sockaddr_un);
  if (IsAbstract(path)) {
    unix_address->sun_path[0] = '\0';
    address.size = static_cast<socklen_t>(kPathAt + path.size());
  }
  return address;
}

Descriptor ListenUnix(const Address& address) {
  const mode_t usual = umask(0177);  // the socket has this mode from its beginning
  try {
    Descriptor listener = Listen(address, 0);
    umask(usual);
    return listener;
  } catch (...) {
    umask(usual);
    throw;
  }
}

Peer PeerOf(int socket) {
  ucred found = {};
  socklen_t size = sizeof(found);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &found, &size) != 0) return {};
  return {found.pid, found.uid == geteuid(), found.uid};
}

Descriptor Listen(Address address, int last_port) {
  Descriptor listener(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.open()) throw Fault(kExitUsage, std::string("no socket: ") + strerror(errno));
  // Connections of an earlier server that linger do not keep this one from its port.
  SetInt(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  while (true) {
    if (bind(listener.get(), address.get(), address.size) == 0 &&
        listen(listener.get(), kBacklog) == 0) {
      return listener;
    }
    if (errno != EADDRINUSE || address.IsUnix() || address.port() >= last_port) {
      throw Fault(kExitUsage, "cannot listen on " + address.Text() + ": " + strerror(errno));
    }
    SetPort(&address, address.port() + 1);
  }
}

Address LocalAddress(int socket) {
  Address address;
  address.size = sizeof(address.storage);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size);
  return address;
}

void SetConnectionOptions(int socket) {
  SetInt(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  SetInt(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetInt(socket, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  SetInt(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  SetInt(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

int Receive(int socket, void* data, size_t size) {
  const ssize_t count = recv(socket, data, size, MSG_DONTWAIT);
  if (count >= 0) return static_cast<int>(count);
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? -1 : 0;
}

bool SendWhole(int socket, const std::string& data) {
  const ssize_t count = send(socket, data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return count == static_cast<ssize_t>(data.size());
}

}  // namespace board_server
