// Tensors in the CPU's memory, aligned as TVM's generated code expects its arguments.
#ifndef MODEL_HOST_TENSOR_H_
#define MODEL_HOST_TENSOR_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "dtype.h"

namespace edge {

// With whatever is in that memory.
tvm::ffi::Tensor HostTensor(const DType& dtype, const std::vector<int64_t>& shape);

// A copy in the memory of a device.
tvm::ffi::Tensor Copied(const tvm::ffi::Tensor& tensor, DLDevice device);

// Whether memory is as aligned as theirs.
bool IsAligned(const void* data);

// What a contiguous one holds.
char* DataOf(const tvm::ffi::Tensor& tensor);
size_t SizeOf(const tvm::ffi::Tensor& tensor);

}  // namespace edge

#endif  // MODEL_HOST_TENSOR_H_
