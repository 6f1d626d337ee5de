// What the device and the process on it have: CPU features and CPUs to use.
#ifndef MODEL_DEVICE_H_
#define MODEL_DEVICE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace edge {

// Refuses (kExitLoad) CPU features, named as in /proc/cpuinfo, that any of the CPUs lacks.
// The features in what /proc/cpuinfo says of a RISC-V's instruction set, such as "rv64imafdcv_zba_zbb",
// with blanks between them; "" where it is no such text.
std::string IsaWords(const std::string& isa);

void CheckCpuFeatures(const std::vector<std::string>& needed, const std::string& manifest);

// The CPUs for this many threads (0: all) out of those this process may use, the highest clock
// first. Refuses (kExitUsage) more threads than CPUs.
std::vector<int> ChooseCpus(int64_t threads);

}  // namespace edge

#endif  // MODEL_DEVICE_H_
