// See page_ranges.h.
#include "page_ranges.h"

#include <algorithm>

namespace vta {

std::optional<uint64_t> PageRanges::Take(uint64_t bytes) {
  if (bytes > bytes_) return std::nullopt;  // and so its pages can be counted
  const uint64_t wanted = ToPages(std::max<uint64_t>(bytes, 1));
  uint64_t first = 0;
  for (const auto& one : taken_) {
    if (one.first - first >= wanted) break;
    first = one.first + one.second;
  }
  if (first > bytes_ || bytes_ - first < wanted) return std::nullopt;
  taken_[first] = wanted;
  return first;
}

uint64_t PageRanges::Used() const {
  uint64_t used = 0;
  for (const auto& one : taken_) used += one.second;
  return used;
}

}  // namespace vta
