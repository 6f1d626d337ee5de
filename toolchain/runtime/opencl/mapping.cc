// See mapping.h.
#include "mapping.h"

#include <utility>

#include "status.h"

namespace opencl {
namespace {

constexpr char kUnmapping[] = "unmapping a buffer";

cl_bitfield FlagsOf(const Device& device, Access access) {
  switch (access) {
    case Access::kRead:
      return CL_MAP_READ;
    case Access::kReplace:
      return device.limits.is_12 ? CL_MAP_WRITE_INVALIDATE_REGION : CL_MAP_WRITE;
    case Access::kChange:
      break;
  }
  return CL_MAP_READ | CL_MAP_WRITE;
}

void* Mapped(Device& device, cl_mem buffer, Access access, size_t offset, size_t bytes) {
  cl_int status = CL_SUCCESS;
  void* data = device.cl.EnqueueMapBuffer(device.queue, buffer, CL_TRUE, FlagsOf(device, access), offset,
                                          bytes, 0, nullptr, nullptr, &status);
  Check(status, "mapping a buffer");
  return data;
}

}  // namespace

Mapping::Mapping(Device& device, cl_mem buffer, Access access, size_t offset, size_t bytes)
    : device_(device), buffer_(buffer), data_(Mapped(device, buffer, access, offset, bytes)) {}

Mapping::Mapping(const tvm::ffi::Tensor& tensor, Access access)
    : Mapping(TheDevice(tensor.device().device_id), static_cast<cl_mem>(tensor.data_ptr()), access,
              tensor.byte_offset(), tvm::ffi::GetDataSize(tensor)) {}

Mapping::~Mapping() {
  if (data_ == nullptr) return;
  device_.Remember(device_.cl.EnqueueUnmapMemObject(device_.queue, buffer_, data_, 0, nullptr, nullptr));
}

void Mapping::End() {
  void* data = std::exchange(data_, nullptr);
  if (data == nullptr) return;
  Check(device_.cl.EnqueueUnmapMemObject(device_.queue, buffer_, data, 0, nullptr, nullptr), kUnmapping);
}

void CheckMappings(DLDevice device) {
  if (device.device_type == kDLOpenCL) Check(TheDevice(device.device_id).remembered(), kUnmapping);
}

bool SharesMemory(DLDevice device) {
  return device.device_type == kDLOpenCL && TheDevice(device.device_id).limits.shares_memory;
}

}  // namespace opencl
