// What TVM copies to other devices: no parser does, but the rooms that they are in refer to it.
#include <tvm/runtime/tensor.h>

#include <cstdlib>

namespace tvm {
namespace runtime {

Tensor Tensor::Empty(ffi::Shape, DLDataType, DLDevice, ffi::Optional<ffi::String>) { abort(); }
void Tensor::CopyFromTo(const DLTensor*, DLTensor*, TVMStreamHandle) { abort(); }

}  // namespace runtime
}  // namespace tvm
