// The words and numbers of a pipeline in a manifest.
#ifndef MODEL_PLAN_NUMBERS_H_
#define MODEL_PLAN_NUMBERS_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "json.h"
#include "manifest.h"

namespace edge {

template <size_t n>
int32_t Choice(const JsonNode& node, const char* const (&words)[n]) {
  const std::string text = node.Text();
  for (size_t i = 0; i < n; ++i) {
    if (text == words[i]) return static_cast<int32_t>(i);
  }
  node.Fail("has the unknown value \"" + text + "\"");
}

inline int32_t Whole(const JsonNode& node) {
  const int64_t value = node.Integer();
  if (value < 0 || value > std::numeric_limits<int32_t>::max()) node.Fail("is out of range");
  return static_cast<int32_t>(value);
}

inline float Real(const JsonNode& node) {
  const double value = node.Number();
  if (std::fabs(value) > static_cast<double>(std::numeric_limits<float>::max())) node.Fail("is out of range");
  return static_cast<float>(value);
}

inline int64_t CountElements(const TensorSpec& spec) {
  return CountBytes(*spec.dtype, spec.shape) / spec.dtype->bytes;
}

}  // namespace edge

#endif  // MODEL_PLAN_NUMBERS_H_
