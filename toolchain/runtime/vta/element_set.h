// Sets of SRAM elements, as the verifier needs them: whole affine nests in a few operations.
#ifndef VTA_ELEMENT_SET_H_
#define VTA_ELEMENT_SET_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace vta {

class ElementSet {
 public:
  explicit ElementSet(uint32_t depth) : words_((depth + 63) / 64) {}

  // All of these stay below the depth: who calls them has compared that.
  void Add(uint32_t element) { words_[element / 64] |= Bit(element); }
  void AddRange(uint64_t first, uint64_t count);
  uint64_t Depth() const { return words_.size() * 64; }  // rounded up
  bool Has(uint64_t element) const { return (words_[element / 64] & Bit(element)) != 0; }
  void AddAll(const ElementSet& other);
  void RemoveAll(const ElementSet& other);
  void KeepOnly(const ElementSet& other);

  // Adds element + i * step for every element and every i below `times`.
  void Repeat(uint32_t times, uint32_t step);

  // Calls function(element) for all of them, in ascending order.
  template <typename Function>
  void ForEach(Function function) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t left = words_[i]; left != 0; left &= left - 1) {
        function(i * 64 + static_cast<uint64_t>(__builtin_ctzll(left)));
      }
    }
  }

  // Whether every element of `other` is here; if not, `missing` is the first that is not.
  bool Covers(const ElementSet& other, uint64_t* missing) const;
  bool CoversRange(uint64_t first, uint64_t count, uint64_t* missing) const;

 private:
  static uint64_t Bit(uint64_t element) { return uint64_t{1} << (element % 64); }
  void AddShifted(uint64_t distance);

  std::vector<uint64_t> words_;
};

}  // namespace vta

#endif  // VTA_ELEMENT_SET_H_
