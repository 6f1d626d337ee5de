// The command line.
#ifndef BOARD_SERVER_OPTIONS_H_
#define BOARD_SERVER_OPTIONS_H_

#include <string>

namespace board_server {

extern const char kUsage[];

struct Options {
  bool help = false;
  bool version = false;
  bool socket = false;
  std::string connect;  // path of another server's socket; empty: this is a server itself
  std::string host = "127.0.0.1";
  int port = 9090;
  int port_end = 0;  // 0: only `port`
  std::string tracker_host;
  int tracker_port = 0;  // 0: no tracker
  std::string key;  // the board's public name at the tracker
  std::string custom_addr;
  bool control = false;
  std::string work_dir;
  double session_limit = 0;  // seconds; 0: none
  double idle_limit = 0;     // seconds; 0: none
};

// What is wrong with a board's name at a tracker; empty if nothing is.
std::string NameProblem(const std::string& key);

// Throws edge::Fault of kExitUsage.
Options ParseOptions(int argc, char** argv);

}  // namespace board_server

#endif  // BOARD_SERVER_OPTIONS_H_
