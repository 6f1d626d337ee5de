// Counts of durations in buckets whose width is a fixed share of their value, as HdrHistogram has them.
#ifndef RUNNER_HISTOGRAM_H_
#define RUNNER_HISTOGRAM_H_

#include <tvm/ffi/extra/json.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace runner {

// Values of up to `bits` binary digits have a bucket each; above, each power of two has 2^(bits-1) buckets.
// With 11 bits these are the buckets of an HdrHistogram with three digits from 1 on.
class Histogram {
 public:
  // Takes all of its memory here, so that Record takes none.
  explicit Histogram(int bits);

  // Values are nanoseconds; those beyond 39 hours count as the largest one.
  void Record(int64_t value);

  // [index, count, index, count, ...] of the buckets that are not empty.
  tvm::ffi::json::Array Counts() const;

 private:
  size_t IndexOf(uint64_t value) const;

  const int bits_;
  std::vector<uint32_t> counts_;
};

}  // namespace runner

#endif  // RUNNER_HISTOGRAM_H_
