// What clients call by name in a session, beside TVM's own functions.
#ifndef BOARD_SERVER_FUNCTIONS_H_
#define BOARD_SERVER_FUNCTIONS_H_

#include <string>

namespace board_server {

// Files that clients name are those in `folder`.
void RegisterFunctions(const std::string& folder);

}  // namespace board_server

#endif  // BOARD_SERVER_FUNCTIONS_H_
