// Elements of a model's input, from floats.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "steps.h"

namespace steps {
namespace {

// Rounds to the nearest half, and halves to the even one.
uint16_t HalfOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | (magnitude > 0x7F800000 ? 0x7E00 : 0x7C00));
  if (magnitude < 0x38800000) {  // below the smallest normal half: whole multiples of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(std::fabs(value) * 16777216.0f)));
  }
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000) >> 13);
}

}  // namespace

size_t SizeOf(int32_t element) {
  return element == kFloat32 ? 4 : element == kFloat16 ? 2 : 1;
}

uint32_t ElementOf(int32_t element, float value) {
  if (element == kFloat32) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  if (element == kFloat16) return HalfOf(value);
  const float low = element == kInt8 ? -128 : 0, high = element == kInt8 ? 127 : 255;
  const float limited = value > low ? std::min(value, high) : low;  // of no number, too
  return static_cast<uint8_t>(static_cast<int>(std::nearbyint(limited)));
}

}  // namespace steps
