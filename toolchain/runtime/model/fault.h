// The one exception type of what we wrote: what went wrong, with which file, and its exit code,
// which is also the status that the library returns.
#ifndef MODEL_FAULT_H_
#define MODEL_FAULT_H_

#include <stdexcept>
#include <string>
#include <utility>

namespace edge {

enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 2,     // the command line or the call, or a place to write to
  kExitInput = 3,     // the release or the inputs
  kExitLoad = 4,      // the library does not fit this device
  kExitRunFailed = 5,  // the model failed while it ran
  kExitDifferent = 6,  // the outputs are not the expected ones
  kExitUntrusted = 7,  // the device does not take the release
  kExitFloor = 8,      // a floor that the release itself is below
  kExitRights = 9      // the system does not give this process what it asks for
};

class Fault : public std::runtime_error {
 public:
  Fault(ExitCode code, const std::string& what, std::string file = "")
      : std::runtime_error(what), code_(code), file_(std::move(file)) {}

  ExitCode code() const { return code_; }
  const std::string& file() const { return file_; }

 private:
  ExitCode code_;
  std::string file_;
};

}  // namespace edge

#endif  // MODEL_FAULT_H_
