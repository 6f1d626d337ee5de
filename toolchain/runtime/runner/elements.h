// The elements of tensors, one after the other, as a comparison reads them.
#ifndef RUNNER_ELEMENTS_H_
#define RUNNER_ELEMENTS_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "../model/dtype.h"

namespace runner {

struct Elements {
  const edge::DType* dtype;
  std::vector<int64_t> shape;
  std::string bytes;

  template <typename T>
  T At(size_t index) const {
    T value;
    memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
    return value;
  }
};

Elements ElementsOf(const tvm::ffi::Tensor& tensor);

// Whether they are numbers of some precision.
bool IsReal(const Elements& elements);

// Numbers of some precision in double precision, which holds all of them; nothing of other types.
std::vector<double> Doubles(const Elements& elements);

// A float16 as a float, which holds all of them.
float Widened(uint16_t half);

}  // namespace runner

#endif  // RUNNER_ELEMENTS_H_
