// board_server: serves TVM's RPC protocol on a board, or leads to a server that does. See options.cc
// for its usage.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "../model/fault.h"
#include "connect.h"
#include "log.h"
#include "options.h"
#include "server.h"
#include "version.h"

namespace board_server {
namespace {

void Print(const std::string& text) {
  fputs(text.c_str(), stdout);
  fflush(stdout);
}

void Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  if (options.help) return Print(kUsage);
  if (options.version) return Print(VersionLine() + "\n");
  if (!options.connect.empty()) return Connect(options.connect);
  // Most kernels of sessions are candidates that run once: kept, they would cost time, and push out
  // those of the models that are deployed. Who starts the server may want it otherwise.
  setenv("EDGE_OPENCL_CACHE", "", 0);
  Server server(options);
  Print("listening on " + server.address() + "\n");
  server.Run();
}

int MainWithFaults(int argc, char** argv) {
  try {
    Main(argc, argv);
    return edge::kExitOk;
  } catch (const edge::Fault& fault) {
    const std::string place = fault.file().empty() ? "" : " (" + fault.file() + ")";
    fprintf(stderr, "board_server: %s%s\n", fault.what(), place.c_str());
    return fault.code();
  } catch (const std::exception& error) {
    Log(std::string("giving up: ") + error.what());
    return 1;
  }
}

}  // namespace
}  // namespace board_server

int main(int argc, char** argv) {
  const int code = board_server::MainWithFaults(argc, argv);
  // Folders and processes are gone by now; TVM's own end adds nothing.
  fflush(nullptr);
  _exit(code);
}
