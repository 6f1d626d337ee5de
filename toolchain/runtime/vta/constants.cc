// See constants.h.
#include "constants.h"

namespace vta {

uint64_t Constants::Hold(const std::vector<TensorBytes>& tensors) {
  const uint64_t holder = ++last_;
  std::vector<Place>& places = holders_[holder];
  for (const TensorBytes& one : tensors) {
    places.emplace_back(one.data, one.bytes);
    Held& held = tensors_[places.back()];
    if (held.holders++ == 0) held.number = ++last_;
  }
  return holder;
}

std::vector<uint64_t> Constants::Release(uint64_t holder) {
  std::vector<uint64_t> gone;
  const auto found = holders_.find(holder);
  if (found == holders_.end()) return gone;
  for (const Place& place : found->second) {
    const auto held = tensors_.find(place);
    if (--held->second.holders != 0) continue;
    gone.push_back(held->second.number);
    tensors_.erase(held);
  }
  holders_.erase(found);
  return gone;
}

uint64_t Constants::NumberOf(const TensorBytes& tensor) const {
  const auto found = tensors_.find({tensor.data, tensor.bytes});
  return found == tensors_.end() ? 0 : found->second.number;
}

}  // namespace vta
