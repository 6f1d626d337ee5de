// TCP for TVM's RPC. Written from how TVM's runtime uses it: a device serves connections that it
// was given, and connects only if a program on it asks for that.
#ifndef TVM_SUPPORT_SOCKET_H_
#define TVM_SUPPORT_SOCKET_H_

#include <netdb.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace tvm {
namespace support {

// A host and a port, resolved.
class SockAddr {
 public:
  SockAddr(const char* host, int port) : text_(std::string(host) + ":" + std::to_string(port)) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int fault = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
    TVM_FFI_CHECK(fault == 0, RuntimeError) << "cannot resolve " << text_ << ": "
                                            << gai_strerror(fault);
    memcpy(&address_, found->ai_addr, found->ai_addrlen);
    size_ = found->ai_addrlen;
    freeaddrinfo(found);
  }

  sa_family_t ss_family() const { return address_.ss_family; }
  std::string AsString() const { return text_; }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t size() const { return size_; }

 private:
  std::string text_;
  sockaddr_storage address_ = {};
  socklen_t size_ = 0;
};

// Refers to a socket without owning it: copies are the same socket, and Close() is its end.
class Socket {
 public:
  using SockType = int;

  [[noreturn]] static void Error(const char* doing) {
    TVM_FFI_THROW(RuntimeError) << doing << ": " << strerror(errno);
    TVM_FFI_UNREACHABLE();
  }

  bool BadSocket() const { return socket_ < 0; }

  void Close() {
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }

 protected:
  explicit Socket(SockType socket) : socket_(socket) {}

  SockType socket_;
};

class TCPSocket : public Socket {
 public:
  explicit TCPSocket(SockType socket = -1) : Socket(socket) {}

  void Create(int family) {
    socket_ = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (BadSocket()) Error("socket");
  }

  bool Connect(const SockAddr& address) {
    return connect(socket_, address.address(), address.size()) == 0;
  }

  // Return the bytes moved, 0 at the end of the stream, -1 on an error.
  ssize_t Send(const void* data, size_t size) {
    return Again([&] { return send(socket_, data, size, MSG_NOSIGNAL); });
  }
  ssize_t Recv(void* data, size_t size) {
    return Again([&] { return recv(socket_, data, size, 0); });
  }

  // Return less than `size` only at the end of the stream.
  size_t SendAll(const void* data, size_t size) {
    const char* next = static_cast<const char*>(data);
    return Repeat("send", size, [&](size_t done) { return Send(next + done, size - done); });
  }
  size_t RecvAll(void* data, size_t size) {
    char* next = static_cast<char*>(data);
    return Repeat("receive", size, [&](size_t done) { return Recv(next + done, size - done); });
  }

 private:
  // Calls once more where a signal came first.
  template <typename Call>
  static ssize_t Again(Call call) {
    ssize_t result = call();
    while (result == -1 && errno == EINTR) result = call();
    return result;
  }

  template <typename Call>
  static size_t Repeat(const char* doing, size_t size, Call call) {
    size_t done = 0;
    while (done < size) {
      const ssize_t count = call(done);
      if (count < 0) Error(doing);
      if (count == 0) break;
      done += static_cast<size_t>(count);
    }
    return done;
  }
};

}  // namespace support
}  // namespace tvm

#endif  // TVM_SUPPORT_SOCKET_H_
