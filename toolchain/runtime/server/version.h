// What this program is made of.
#ifndef BOARD_SERVER_VERSION_H_
#define BOARD_SERVER_VERSION_H_

#include <string>

namespace board_server {

// {"device": ..., "tvm": ..., "tvm_ffi": ..., "machine": ...} in one line.
std::string VersionLine();

}  // namespace board_server

#endif  // BOARD_SERVER_VERSION_H_
