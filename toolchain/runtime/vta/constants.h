// Tensors that somebody promises not to change: a network's weights.
#ifndef VTA_CONSTANTS_H_
#define VTA_CONSTANTS_H_

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vta {

// The caller's memory for one of a stream's buffers.
struct TensorBytes {
  void* data = nullptr;
  uint64_t bytes = 0;
};

// Each gets a number that no other ever has: where memory is given back and holds something else
// later, its number is another one.
class Constants {
 public:
  // Who calls this keeps the tensors alive and as they are until what it returns is released.
  uint64_t Hold(const std::vector<TensorBytes>& tensors);
  // Returns the numbers that nobody holds any more.
  std::vector<uint64_t> Release(uint64_t held);

  // 0 where it is not held from its first byte to its last.
  uint64_t NumberOf(const TensorBytes& tensor) const;

 private:
  using Place = std::pair<void*, uint64_t>;
  struct Held {
    uint64_t number = 0;
    uint32_t holders = 0;
  };

  std::map<Place, Held> tensors_;
  std::unordered_map<uint64_t, std::vector<Place>> holders_;
  uint64_t last_ = 0;
};

}  // namespace vta

#endif  // VTA_CONSTANTS_H_
