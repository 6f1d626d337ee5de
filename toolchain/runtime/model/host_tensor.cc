// See host_tensor.h.
#include "host_tensor.h"

#include <tvm/runtime/tensor.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace edge {
namespace {

using tvm::ffi::Tensor;

constexpr size_t kAlignment = 64;

struct AlignedAllocator {
  void AllocData(DLTensor* tensor) {
    const size_t size = std::max<size_t>(tvm::ffi::GetDataSize(*tensor), 1);
    if (posix_memalign(&tensor->data, kAlignment, size) != 0) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { free(tensor->data); }
};

}  // namespace

Tensor HostTensor(const DType& dtype, const std::vector<int64_t>& shape) {
  return Tensor::FromNDAlloc(AlignedAllocator(), tvm::ffi::ShapeView(shape.data(), shape.size()),
                             dtype.dl, DLDevice{kDLCPU, 0});
}

Tensor Copied(const Tensor& tensor, DLDevice device) {
  auto copy = tvm::runtime::Tensor::Empty(tensor.shape(), tensor.dtype(), device);
  copy.CopyFrom(tensor);
  return copy;
}

bool IsAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kAlignment == 0; }

char* DataOf(const Tensor& tensor) {
  return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset();
}

size_t SizeOf(const Tensor& tensor) { return tvm::ffi::GetDataSize(tensor); }

}  // namespace edge
