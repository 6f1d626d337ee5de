// Memory that a device has in common with the host, as the host sees it.
#ifndef OPENCL_MAPPING_H_
#define OPENCL_MAPPING_H_

#include <tvm/ffi/container/tensor.h>

#include <cstddef>

#include "devices.h"

namespace opencl {

enum class Access { kRead, kReplace, kChange };  // kReplace: what it held does not matter

// A part of a buffer while it is mapped. The device may read meanwhile what is mapped for reading;
// of what is mapped for more it knows nothing until the mapping ends.
class Mapping {
 public:
  // Waits for what is queued. `bytes` is not 0. Throws tvm::ffi::Error.
  Mapping(Device& device, cl_mem buffer, Access access, size_t offset, size_t bytes);
  // All of a contiguous tensor of an OpenCL device.
  Mapping(const tvm::ffi::Tensor& tensor, Access access);
  // What fails here fails whatever waits for the device next, and `CheckMappings`.
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void* data() const { return data_; }

  // Hands the memory back, in front of whatever is queued later. Throws tvm::ffi::Error.
  void End();

 private:
  Device& device_;
  const cl_mem buffer_;
  void* data_;
};

// Throws tvm::ffi::Error if a mapping of a device could not be ended when it was given up; does nothing
// for devices of other kinds.
void CheckMappings(DLDevice device);

// Whether a device has its memory in common with the host; false for devices of other kinds.
bool SharesMemory(DLDevice device);

}  // namespace opencl

#endif  // OPENCL_MAPPING_H_
