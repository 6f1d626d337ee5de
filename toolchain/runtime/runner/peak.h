// The most that a device's CPUs compute and move, measured: what a kernel's own figures are held against.
#ifndef RUNNER_PEAK_H_
#define RUNNER_PEAK_H_

#include <cstdint>
#include <string>

namespace runner {

struct Peak {
  std::string instructions;  // what the multiply-adds were made of
  int threads = 0;
  double gflops = 0;      // float32, a multiply-add counts as two
  double gbytes_s = 0;    // of a[i] = b[i] + s * c[i], three times the elements' size for each
  int64_t array_kib = 0;  // the size of one of its three arrays
};

// The best of several tries, on threads that each have a CPU of their own (0: one for each CPU).
// Faults are kExitUsage and kExitRunFailed.
Peak MeasurePeak(int64_t threads);

// The first of these alone, on the threads that kernels have: in half a second, and without memory.
double MeasureGflops();

// In one line of JSON.
std::string PeakLine(const Peak& peak);

}  // namespace runner

#endif  // RUNNER_PEAK_H_
