// The clock that everything is timed by.
#ifndef RUNNER_CLOCK_H_
#define RUNNER_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace runner {

using Clock = std::chrono::steady_clock;

inline int64_t NanosecondsSince(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

inline double MillisecondsSince(Clock::time_point start) {
  return static_cast<double>(NanosecondsSince(start)) / 1e6;
}

}  // namespace runner

#endif  // RUNNER_CLOCK_H_
