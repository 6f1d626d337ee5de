// The way to a server through a command: for who reaches this machine by commands alone.
#ifndef BOARD_SERVER_CONNECT_H_
#define BOARD_SERVER_CONNECT_H_

#include <string>

namespace board_server {

// Carries standard input to the server whose Unix socket has this path, and what that says to
// standard output, until one side is gone or both have said all. Throws edge::Fault of kExitUsage
// if no server of this user listens there.
void Connect(const std::string& path);

}  // namespace board_server

#endif  // BOARD_SERVER_CONNECT_H_
