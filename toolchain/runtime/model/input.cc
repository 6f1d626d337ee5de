// See input.h.
#include "input.h"

#include <tvm/runtime/tensor.h>

#include <cstring>
#include <exception>

#include "fault.h"
#include "host_tensor.h"

namespace edge {
namespace {

using opencl::Access;
using opencl::Mapping;
using tvm::ffi::Tensor;

Tensor OnDevice(const TensorSpec& spec, DLDevice device) {
  if (device.device_type == kDLCPU) return HostTensor(*spec.dtype, spec.shape);
  const tvm::ffi::ShapeView shape(spec.shape.data(), spec.shape.size());
  return tvm::runtime::Tensor::Empty(tvm::ffi::Shape(shape), spec.dtype->dl, device);
}

}  // namespace

Input::Input(const TensorSpec& spec, DLDevice device) : argument_(OnDevice(spec, device)) {
  if (device.device_type == kDLCPU) {
    place_ = DataOf(argument_);
  } else if (opencl::SharesMemory(device) && SizeOf(argument_) != 0 && MapAtOnePlace()) {
    return;
  } else {
    copied_ = HostTensor(*spec.dtype, spec.shape);
    place_ = DataOf(copied_);
  }
  memset(place_, 0, SizeOf(argument_));
}

// Maps twice. OpenCL promises of no mapping that it is where the last one was: where this driver moves
// it, whoever keeps the address would write to what is not there any more.
bool Input::MapAtOnePlace() {
  void* first = nullptr;
  {
    Mapping mapping(argument_, Access::kReplace);
    first = mapping.data();
    memset(first, 0, SizeOf(argument_));
    mapping.End();
  }
  auto mapping = std::make_unique<Mapping>(argument_, Access::kChange);
  if (mapping->data() != first || !IsAligned(first)) return false;
  mapping_ = std::move(mapping);
  place_ = static_cast<char*>(first);
  return is_lent_ = true;
}

void Input::Give() {
  Check();
  if (copied_.defined()) {
    tvm::runtime::Tensor(argument_).CopyFrom(copied_);
  } else if (mapping_) {
    EndMapping();
  }
}

// Whether the driver still has the memory mapped after a failure is not known, and so not what a later
// run would compute with.
void Input::EndMapping() {
  try {
    mapping_->End();
  } catch (const std::exception& error) {
    lost_ = error.what();
    throw;
  }
  mapping_.reset();
}

void Input::TakeBack() noexcept {
  if (!is_lent_ || mapping_) return;
  try {
    mapping_ = std::make_unique<Mapping>(argument_, Access::kChange);
    if (mapping_->data() != place_) {
      lost_ = "the driver moves memory that it maps: EDGE_OPENCL_COPY=1 does without such memory";
    }
  } catch (const std::exception& error) {
    lost_ = error.what();
  }
}

void Input::Check() const {
  if (!lost_.empty()) throw Fault(kExitRunFailed, "an input's memory is lost: " + lost_);
}

}  // namespace edge
