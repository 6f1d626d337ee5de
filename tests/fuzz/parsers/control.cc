// The controller's orders, in pieces of any size: the first byte says of which.
#include "server/control.h"

#include <fcntl.h>

#include <algorithm>

#include "fuzz.h"
#include "server/options.h"
#include "server/secrets.h"

using board_server::ControlLine;

namespace {

void Check(const std::string& line, std::string (*problem)(const std::string&)) {
  const ControlLine order = board_server::ParseControlLine(line, problem);
  if (!order.problem.empty()) return;
  fuzz::Must(order.order != ControlLine::Order::kKey || problem(order.key).empty());
}

// What it answers goes nowhere.
void TakeStandardStreams(int input) {
  dup2(input, STDIN_FILENO);
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(nowhere, STDOUT_FILENO);
  close(nowhere);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = data[0] * size_t{16} + 1;
  const fuzz::Pair pair;
  TakeStandardStreams(pair.here);
  board_server::Control control;
  for (size_t at = 1; at < size; at += piece) {
    pair.Send(data + at, std::min(piece, size - at));
    for (const std::string& line : control.TakeLines()) {
      Check(line, board_server::NameProblem);
      Check(line, board_server::SecretProblem);
      control.Answer(line);
    }
  }
  return 0;
}
