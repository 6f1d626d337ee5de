// See results.h.
#include "results.h"

#include <algorithm>
#include <string>

#include "fault.h"

namespace vta {

uint64_t Results::Find(const TensorBytes& tensor) const {
  const auto found = kept_.find(tensor.data);
  if (found == kept_.end()) return kNowhere;
  if (found->second.bytes == tensor.bytes) return found->second.memory.physical;
  Fail("a result of " + std::to_string(found->second.bytes) + " bytes is read as one of " +
       std::to_string(tensor.bytes));
}

const Results::Kept* Results::Reuse(const TensorBytes& tensor, uint64_t owner) {
  const auto found = kept_.find(tensor.data);
  if (found == kept_.end() || found->second.memory.size < tensor.bytes) return nullptr;
  found->second.bytes = tensor.bytes;
  found->second.owner = owner;
  return &found->second;
}

void Results::Add(const TensorBytes& tensor, const DmaBuffer& memory, uint64_t owner) {
  kept_[tensor.data] = {memory, tensor.bytes, owner};
}

DmaBuffer Results::Take(const void* tensor) {
  const auto found = kept_.find(tensor);
  if (found == kept_.end()) return {};
  const DmaBuffer memory = found->second.memory;
  kept_.erase(found);
  return memory;
}

std::vector<DmaBuffer> Results::TakeOwned(const std::vector<uint64_t>& owners) {
  std::vector<DmaBuffer> taken;
  for (auto one = kept_.begin(); one != kept_.end();) {
    const auto here = one++;
    if (std::find(owners.begin(), owners.end(), here->second.owner) == owners.end()) continue;
    taken.push_back(here->second.memory);
    kept_.erase(here);
  }
  return taken;
}

std::vector<const void*> Results::Places() const {
  std::vector<const void*> places;
  for (const auto& one : kept_) places.push_back(one.first);
  return places;
}

}  // namespace vta
