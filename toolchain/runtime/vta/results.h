// Results that stay in a device's memory, where the streams behind them find them.
#ifndef VTA_RESULTS_H_
#define VTA_RESULTS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "constants.h"
#include "device.h"

namespace vta {

constexpr uint64_t kNowhere = UINT64_MAX;  // a physical address that there is not

// By where the caller's tensor is. A network's tensors take turns in the same places: what was
// written there last is what counts, and whoever reads has been told that it may be here.
class Results {
 public:
  struct Kept {
    DmaBuffer memory;
    uint64_t bytes = 0;
    uint64_t owner = 0;  // number of one of the constants that it was made with
  };

  // kNowhere where it is not here. Throws Fault where it is of another size.
  uint64_t Find(const TensorBytes& tensor) const;

  // The memory of what is to be written; nullptr where there is none, or too little.
  const Kept* Reuse(const TensorBytes& tensor, uint64_t owner);
  void Add(const TensorBytes& tensor, const DmaBuffer& memory, uint64_t owner);

  // Takes one out, and returns its memory, whose data is nullptr where there was none.
  DmaBuffer Take(const void* tensor);
  // Takes out all that were made with such constants.
  std::vector<DmaBuffer> TakeOwned(const std::vector<uint64_t>& owners);

  // Where the callers' tensors of all are.
  std::vector<const void*> Places() const;

 private:
  std::map<const void*, Kept> kept_;
};

}  // namespace vta

#endif  // VTA_RESULTS_H_
