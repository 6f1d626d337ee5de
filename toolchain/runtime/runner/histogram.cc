// See histogram.h.
#include "histogram.h"

#include <algorithm>

namespace runner {
namespace {

constexpr int kLargestBits = 47;
constexpr int64_t kLargest = (int64_t{1} << kLargestBits) - 1;

}  // namespace

Histogram::Histogram(int bits) : bits_(bits), counts_(IndexOf(kLargest) + 1) {}

size_t Histogram::IndexOf(uint64_t value) const {
  const uint64_t least = (uint64_t{1} << bits_) - 1;
  const int bucket = 64 - __builtin_clzll(value | least) - bits_;
  const size_t half = size_t{1} << (bits_ - 1);
  return static_cast<size_t>(bucket) * half + static_cast<size_t>(value >> bucket);
}

void Histogram::Record(int64_t value) {
  ++counts_[IndexOf(static_cast<uint64_t>(std::clamp(value, int64_t{0}, kLargest)))];
}

tvm::ffi::json::Array Histogram::Counts() const {
  tvm::ffi::json::Array pairs;
  for (size_t index = 0; index < counts_.size(); ++index) {
    if (counts_[index] == 0) continue;
    pairs.push_back(static_cast<int64_t>(index));
    pairs.push_back(static_cast<int64_t>(counts_[index]));
  }
  return pairs;
}

}  // namespace runner
