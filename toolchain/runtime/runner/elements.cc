// See elements.h.
#include "elements.h"

#include <cmath>
#include <limits>

#include "../model/host_tensor.h"

namespace runner {

Elements ElementsOf(const tvm::ffi::Tensor& tensor) {
  const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
  return {edge::FindDLDType(tensor.dtype()), shape,
          std::string(edge::DataOf(tensor), edge::SizeOf(tensor))};
}

bool IsReal(const Elements& elements) {
  return std::string(elements.dtype->name).compare(0, 5, "float") == 0;
}

std::vector<double> Doubles(const Elements& elements) {
  std::vector<double> found;
  if (!IsReal(elements)) return found;
  const std::string type = elements.dtype->name;
  const size_t size = elements.bytes.size() / elements.dtype->bytes;
  found.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    found.push_back(type == "float32"   ? elements.At<float>(i)
                    : type == "float64" ? elements.At<double>(i)
                                        : Widened(elements.At<uint16_t>(i)));
  }
  return found;
}

float Widened(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                              : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  if (exponent == 31) value = fraction ? std::nanf("") : std::numeric_limits<float>::infinity();
  return half & 0x8000 ? -value : value;
}

}  // namespace runner
