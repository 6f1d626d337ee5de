// The command line.
#ifndef BOARD_SERVER_OPTIONS_H_
#define BOARD_SERVER_OPTIONS_H_

#include <string>

namespace board_server {

extern const char kUsage[];

struct Options {
  bool help = false;
  bool version = false;
  std::string host = "127.0.0.1";
  int port = 9090;
  int port_end = 0;  // 0: only `port`
  std::string tracker_host;
  int tracker_port = 0;  // 0: no tracker
  std::string key;
  std::string custom_addr;
  bool control = false;
  std::string work_dir;
  double session_limit = 0;  // seconds; 0: none
};

// What is wrong with a server's key; empty if nothing is.
std::string KeyProblem(const std::string& key);

// Throws runner::Fault of kExitUsage.
Options ParseOptions(int argc, char** argv);

}  // namespace board_server

#endif  // BOARD_SERVER_OPTIONS_H_
