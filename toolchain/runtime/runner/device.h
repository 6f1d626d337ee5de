// What the device and the process on it have: CPU features, CPUs to use, memory used.
#ifndef RUNNER_DEVICE_H_
#define RUNNER_DEVICE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace runner {

// Refuses (kExitLoad) CPU features, named as in /proc/cpuinfo, that any of the CPUs lacks.
void CheckCpuFeatures(const std::vector<std::string>& needed, const std::string& manifest);

// The CPUs for this many threads (0: all) out of those this process may use, the highest clock
// first. Refuses (kExitUsage) more threads than CPUs.
std::vector<int> ChooseCpus(int64_t threads);

// Gives TVM's thread pool as many threads as there are CPUs here, all but the first tied to one of
// them or, if they are not pinned, free to use all of them; returns how many threads the pool has.
// Must be called on the thread that runs the model. The pool's threads spin from here on.
int ConfigureThreads(const std::vector<int>& cpus, bool pinned);

// The most memory this process has used, in KiB.
int64_t PeakRssKib();

// As `uname -m` prints it.
std::string MachineName();

}  // namespace runner

#endif  // RUNNER_DEVICE_H_
