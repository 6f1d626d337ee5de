// Which parts of a stretch of memory are in use, in whole pages.
#ifndef VTA_PAGE_RANGES_H_
#define VTA_PAGE_RANGES_H_

#include <cstdint>
#include <map>
#include <optional>

namespace vta {

constexpr uint64_t kPage = 4096;

inline uint64_t ToPages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

class PageRanges {
 public:
  PageRanges() = default;
  explicit PageRanges(uint64_t bytes) : bytes_(bytes) {}

  // Where so many bytes, a page at least, are free; they are in use then. Nothing where none are.
  std::optional<uint64_t> Take(uint64_t bytes);
  void Give(uint64_t first) { taken_.erase(first); }

  bool Unused() const { return taken_.empty(); }
  uint64_t Used() const;

 private:
  uint64_t bytes_ = 0;
  std::map<uint64_t, uint64_t> taken_;  // bytes, by the first
};

}  // namespace vta

#endif  // VTA_PAGE_RANGES_H_
