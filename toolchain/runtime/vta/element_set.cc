// See element_set.h.
#include "element_set.h"

namespace vta {

void ElementSet::AddRange(uint64_t first, uint64_t count) {
  for (uint64_t element = first; element < first + count;) {
    const uint64_t in_word = std::min(64 - element % 64, first + count - element);
    const uint64_t ones = in_word == 64 ? ~uint64_t{0} : (uint64_t{1} << in_word) - 1;
    words_[element / 64] |= ones << (element % 64);
    element += in_word;
  }
}

void ElementSet::AddAll(const ElementSet& other) {
  for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
}

void ElementSet::RemoveAll(const ElementSet& other) {
  for (size_t i = 0; i < words_.size(); ++i) words_[i] &= ~other.words_[i];
}

void ElementSet::KeepOnly(const ElementSet& other) {
  for (size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
}

void ElementSet::AddShifted(uint64_t distance) {
  const size_t whole = distance / 64, part = distance % 64;
  // From the top, so that each word is read before it is written.
  for (size_t i = words_.size(); i-- > whole;) {
    const uint64_t low = words_[i - whole] << part;
    const uint64_t carried = part == 0 || i == whole ? 0 : words_[i - whole - 1] >> (64 - part);
    words_[i] |= low | carried;
  }
}

void ElementSet::Repeat(uint32_t times, uint32_t step) {
  if (step == 0) return;
  // What is there for i below `have` gives, once shifted, what is there below twice as many.
  for (uint32_t have = 1; have < times;) {
    const uint32_t more = std::min(have, times - have);
    AddShifted(uint64_t{more} * step);
    have += more;
  }
}

bool ElementSet::Covers(const ElementSet& other, uint64_t* missing) const {
  for (size_t i = 0; i < words_.size(); ++i) {
    const uint64_t absent = other.words_[i] & ~words_[i];
    if (absent == 0) continue;
    *missing = i * 64 + static_cast<uint64_t>(__builtin_ctzll(absent));
    return false;
  }
  return true;
}

bool ElementSet::CoversRange(uint64_t first, uint64_t count, uint64_t* missing) const {
  for (uint64_t element = first; element < first + count; ++element) {
    if (element % 64 == 0 && words_[element / 64] == ~uint64_t{0}) {
      element += 63;
    } else if (!Has(element)) {
      *missing = element;
      return false;
    }
  }
  return true;
}

}  // namespace vta
