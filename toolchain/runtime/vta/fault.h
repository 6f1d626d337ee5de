// What every function here throws where a program, a stream or a device is wrong.
#ifndef VTA_FAULT_H_
#define VTA_FAULT_H_

#include <stdexcept>
#include <string>

namespace vta {

// Carries one sentence for the user; nothing else is thrown on purpose.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void Fail(const std::string& message) { throw Fault(message); }

}  // namespace vta

#endif  // VTA_FAULT_H_
