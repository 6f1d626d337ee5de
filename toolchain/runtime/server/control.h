// What the server's controller, who started it, says on standard input and hears on standard output.
//
// The controller writes lines: "key KEY", "withdraw" or "cut". Each is answered by one line in the
// same order: "ok key", "ok withdraw", "ok cut", or "error REASON". With a tracker a key is a name,
// and its answer is "ok key NAME". Lines that begin with "session " come in between: "session 3
// begins", and "session 3 ends: well" or "session 3 ends: PROBLEM".
#ifndef BOARD_SERVER_CONTROL_H_
#define BOARD_SERVER_CONTROL_H_

#include <unistd.h>

#include <cstddef>
#include <string>
#include <vector>

namespace board_server {

// An order of the controller; with a problem it is none.
struct ControlLine {
  enum class Order { kKey, kWithdraw, kCut };
  std::string problem;
  Order order = Order::kKey;
  std::string key;
};

// `key_problem` says what is wrong with a key; nothing if it says nothing.
ControlLine ParseControlLine(const std::string& line,
                             std::string (*key_problem)(const std::string&));

// Neither reads nor writes block: a controller that does not listen must not hold up sessions.
class Control {
 public:
  // Throws edge::Fault of kExitUsage if there is no standard input or output.
  Control();

  // For poll().
  int input() const { return STDIN_FILENO; }
  int output() const { return STDOUT_FILENO; }
  // A controller that does not read its answers is not listened to.
  bool wants_input() const;
  bool has_output() const { return !out_.empty(); }

  // The lines that have arrived; to be called when poll() says that there is something. One that
  // is too long comes cut, which is still too long for a key.
  std::vector<std::string> TakeLines();
  void Answer(const std::string& line);
  // The same for an event, which is dropped if the controller does not read.
  void Tell(const std::string& event);
  // Writes what can be written.
  void Flush();

  bool controller_gone() const { return controller_gone_; }

 private:
  std::string in_, out_;
  bool controller_gone_ = false;
};

}  // namespace board_server

#endif  // BOARD_SERVER_CONTROL_H_
