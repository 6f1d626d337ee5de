// The clock and the heat of the device's CPUs at one moment, as Linux shows them.
#ifndef RUNNER_CONDITIONS_H_
#define RUNNER_CONDITIONS_H_

#include <tvm/ffi/extra/json.h>

#include <string>
#include <utility>
#include <vector>

namespace runner {

// Finds the files once, so that a look reads only those that exist.
class Conditions {
 public:
  // `sysfs` is the folder of the kernel's files, /sys.
  explicit Conditions(const std::string& sysfs);

  // {"khz": [...], "governors": [...], "throttles": sum or null, "cooling": ["STATE KIND", ...]}
  tvm::ffi::json::Object Look() const;

 private:
  std::vector<std::string> clocks_, governors_, throttles_;
  std::vector<std::pair<std::string, std::string>> cooling_;  // files of the state and of the kind
};

}  // namespace runner

#endif  // RUNNER_CONDITIONS_H_
