// The session's process: from the fork to its end.
#ifndef BOARD_SERVER_CHANNEL_H_
#define BOARD_SERVER_CHANNEL_H_

#include <string>

#include "session.h"

namespace board_server {

// Serves the client on `socket` until it says good-bye. To be called right after the fork, in the
// new process; it ends with the process `server` that made it.
[[noreturn]] void ServeAndExit(pid_t server, int socket, const std::string& folder,
                               SessionState* state);

}  // namespace board_server

#endif  // BOARD_SERVER_CHANNEL_H_
