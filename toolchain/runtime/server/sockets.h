// Sockets and descriptors that close themselves.
#ifndef BOARD_SERVER_SOCKETS_H_
#define BOARD_SERVER_SOCKETS_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <string>
#include <utility>

namespace board_server {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { Close(); }

  int get() const { return number_; }
  bool open() const { return number_ >= 0; }
  void Close();

 private:
  int number_ = -1;
};

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool IsLoopback() const;
  bool IsUnix() const { return storage.ss_family == AF_UNIX; }
  std::string Text() const;  // 127.0.0.1:9090, [::1]:9090, unix:/tmp/socket, unix:@name
  int port() const;
};

// These throw edge::Fault of kExitUsage.
Address Resolve(const std::string& option, const std::string& host, int port);
// A path, or "@" and a name of the abstract namespace, where there are no files.
Address UnixAddress(const std::string& path);
Descriptor Listen(Address address, int last_port);
// Makes a socket that only this user may connect to.
Descriptor ListenUnix(const Address& address);

// Whether this names no file.
bool IsAbstract(const std::string& path);
// Whether a path is short enough for the address of a Unix socket.
bool FitsUnixAddress(const std::string& path);

// Who is at the other end of a Unix socket.
struct Peer {
  pid_t process = 0;
  bool is_this_user = false;
  uid_t user = 0;
};
Peer PeerOf(int socket);

Address LocalAddress(int socket);

// A connection to a client, for a while or for a session: small replies go out at once, and a
// client whose machine is gone is noticed within half a minute.
void SetConnectionOptions(int socket);

// Neither blocks. Received: -1 for "nothing yet", 0 for the end, also after an error.
int Receive(int socket, void* data, size_t size);
bool SendWhole(int socket, const std::string& data);

}  // namespace board_server

#endif  // BOARD_SERVER_SOCKETS_H_
