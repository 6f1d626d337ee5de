// TVM's view of an OpenCL device: memory, copies and attributes. A tensor's data is its cl_mem.
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>
#include <tvm/runtime/timer.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>

#include "devices.h"
#include "mapping.h"
#include "status.h"

namespace opencl {
namespace {

using tvm::runtime::DeviceAPI;
using tvm::runtime::DeviceAttrKind;

// In the largest unit of which there is one.
std::string Size(uint64_t bytes) {
  if (bytes >> 20 != 0) return std::to_string(bytes >> 20) + " MiB";
  if (bytes >> 10 != 0) return std::to_string(bytes >> 10) + " KiB";
  return std::to_string(bytes) + " bytes";
}

cl_mem AsBuffer(const void* data) { return static_cast<cl_mem>(const_cast<void*>(data)); }

class OpenClApi final : public DeviceAPI {
 public:
  using DeviceAPI::AllocDataSpace;
  using DeviceAPI::CopyDataFromTo;

  void SetDevice(DLDevice device) final { SetCurrentDevice(device.device_id); }

  void GetAttr(DLDevice device, DeviceAttrKind kind, tvm::ffi::Any* result) final {
    if (kind == tvm::runtime::kExist) {
      *result = static_cast<int>(DeviceExists(device.device_id));
      return;
    }
    Describe(TheDevice(device.device_id).limits, kind, result);
  }

  void* AllocDataSpace(DLDevice dl_device, size_t bytes, size_t, DLDataType) final {
    Device& device = TheDevice(dl_device.device_id);
    cl_int status = CL_SUCCESS;
    const size_t size = std::max<size_t>(bytes, 1);  // OpenCL has no empty buffers
    // Such memory the host sees without a copy, on Mali all the time.
    const cl_bitfield shared = device.limits.shares_memory ? CL_MEM_ALLOC_HOST_PTR : 0;
    const cl_mem made = device.cl.CreateBuffer(device.context, CL_MEM_READ_WRITE | shared, size,
                                               nullptr, &status);
    if (status != CL_SUCCESS) FailAllocating(device, size, status);
    return made;
  }

  void FreeDataSpace(DLDevice device, void* data) final {
    TheDevice(device.device_id).Free(AsBuffer(data));
  }

  void StreamSync(DLDevice dl_device, TVMStreamHandle) final {
    Check(TheDevice(dl_device.device_id).Drain(), "waiting for the device");
  }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset,
                      size_t bytes, DLDevice source, DLDevice target, DLDataType,
                      TVMStreamHandle) final {
    if (bytes == 0) return;
    if (source.device_type == kDLOpenCL && target.device_type == kDLOpenCL) {
      Device& device = OnlyOne(source, target);
      Check(device.cl.EnqueueCopyBuffer(device.queue, AsBuffer(from), AsBuffer(to), from_offset,
                                        to_offset, bytes, 0, nullptr, nullptr),
            "copying on the device");
    } else if (source.device_type == kDLOpenCL) {
      Device& device = TheDevice(source.device_id);
      char* place = static_cast<char*>(to) + to_offset;
      if (device.limits.shares_memory) {
        Mapping mapping(device, AsBuffer(from), Access::kRead, from_offset, bytes);
        memcpy(place, mapping.data(), bytes);
        mapping.End();
        return;
      }
      Check(device.cl.EnqueueReadBuffer(device.queue, AsBuffer(from), CL_TRUE, from_offset, bytes,
                                        place, 0, nullptr, nullptr),
            "copying from the device");
    } else {
      Device& device = TheDevice(target.device_id);
      const char* place = static_cast<const char*>(from) + from_offset;
      if (device.limits.shares_memory) {
        Mapping mapping(device, AsBuffer(to), Access::kReplace, to_offset, bytes);
        memcpy(mapping.data(), place, bytes);
        mapping.End();
        return;
      }
      Check(device.cl.EnqueueWriteBuffer(device.queue, AsBuffer(to), CL_TRUE, to_offset, bytes,
                                         place, 0, nullptr, nullptr),
            "copying to the device");
    }
  }

 private:
  static Device& OnlyOne(DLDevice source, DLDevice target) {
    if (source.device_id != target.device_id) {
      TVM_FFI_THROW(RuntimeError) << "OpenCL: devices " << source.device_id << " and "
                                  << target.device_id << " have no memory in common";
    }
    return TheDevice(source.device_id);
  }

  [[noreturn]] static void FailAllocating(const Device& device, size_t bytes, cl_int status) {
    const Limits& limits = device.limits;
    TVM_FFI_THROW(RuntimeError) << "OpenCL: no memory for a buffer of " << Size(bytes) << " on "
                                << limits.name << ", whose largest is "
                                << Size(limits.largest_buffer) << " of "
                                << Size(limits.global_memory) << ": " << StatusName(status) << "; " << Advice(status);
    TVM_FFI_UNREACHABLE();
  }

  static void Describe(const Limits& limits, DeviceAttrKind kind, tvm::ffi::Any* result) {
    switch (kind) {
      case tvm::runtime::kMaxThreadsPerBlock:
        *result = static_cast<int64_t>(limits.work_group);
        break;
      case tvm::runtime::kWarpSize:
        *result = int64_t{1};  // OpenCL 1.2 promises nothing of work-items that run together
        break;
      case tvm::runtime::kMaxSharedMemoryPerBlock:
        *result = static_cast<int64_t>(limits.local_memory);
        break;
      case tvm::runtime::kDeviceName:
        *result = limits.name;
        break;
      case tvm::runtime::kMaxClockRate:
        *result = static_cast<int64_t>(limits.clock_mhz) * 1000;  // kHz, as for all devices
        break;
      case tvm::runtime::kMultiProcessorCount:
        *result = static_cast<int64_t>(limits.compute_units);
        break;
      case tvm::runtime::kMaxThreadDimensions:
        *result = Dimensions(limits);
        break;
      case tvm::runtime::kApiVersion:
        *result = limits.version;
        break;
      case tvm::runtime::kDriverVersion:
        *result = limits.driver;
        break;
      case tvm::runtime::kTotalGlobalMemory:
        *result = static_cast<int64_t>(limits.global_memory);
        break;
      default:  // what OpenCL does not tell stays None
        break;
    }
  }

  static std::string Dimensions(const Limits& limits) {
    std::string text = "[";
    for (const uint64_t size : limits.work_items) {
      text += (text.size() == 1 ? "" : ", ") + std::to_string(size);
    }
    return text + "]";
  }
};

// Times from when the device has nothing left to do until it has nothing left to do again.
class OpenClTimer : public tvm::runtime::TimerNode {
 public:
  explicit OpenClTimer(DLDevice device) : device_(device) {}

  void Start() final {
    Wait();
    start_ = Clock::now();
  }
  void Stop() final {
    Wait();
    elapsed_ = Clock::now() - start_;
  }
  int64_t SyncAndGetElapsedNanos() final {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed_).count();
  }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("runtime.opencl.Timer", OpenClTimer, tvm::runtime::TimerNode);

 private:
  using Clock = std::chrono::steady_clock;

  void Wait() const {
    Check(TheDevice(device_.device_id).Drain(), "waiting for the device");
  }

  DLDevice device_;
  Clock::time_point start_;
  Clock::duration elapsed_{};
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def_packed("device_api.opencl",
                  [](tvm::ffi::PackedArgs, tvm::ffi::Any* result) {
                    static auto* api = new OpenClApi();  // like TVM's own, never destroyed
                    *result = static_cast<void*>(static_cast<DeviceAPI*>(api));
                  })
      .def("edge_toolchain.opencl.float16",
           [](int device) { return TheDevice(device).limits.has_fp16; })
      .def("edge_toolchain.opencl.name",
           [](int device) { return tvm::ffi::String(TheDevice(device).limits.name); })
      // What kernels in half precision, and those that sum up in it, miss there; empty: nothing.
      .def("edge_toolchain.opencl.float16_lacks",
           [](int device) { return tvm::ffi::String(TheDevice(device).limits.has_fp16 ? "" : "cl_khr_fp16"); })
      .def("edge_toolchain.opencl.half_sums_lacks",
           [](int device) {
             return tvm::ffi::String(TheDevice(device).limits.keeps_small_halves ? "" : "CL_FP_DENORM for halves");
           })
      .def("runtime.timer.opencl", [](DLDevice device) {
        return tvm::runtime::Timer(tvm::ffi::make_object<OpenClTimer>(device));
      });
}

}  // namespace opencl
