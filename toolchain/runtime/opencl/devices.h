// The OpenCL devices of this machine.
#ifndef OPENCL_DEVICES_H_
#define OPENCL_DEVICES_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cl.h"
#include "library.h"

namespace opencl {

// What a device says of itself. Sizes are in bytes, the clock in MHz.
struct Limits {
  std::string platform;
  std::string name;
  std::string version;
  std::string driver;
  bool is_gpu = false;
  bool has_fp16 = false;
  uint64_t work_group = 0;  // most work-items of a work-group
  std::vector<uint64_t> work_items;
  uint64_t local_memory = 0;
  uint64_t global_memory = 0;
  uint64_t largest_buffer = 0;
  uint32_t compute_units = 0;
  uint32_t clock_mhz = 0;
};

// A device with its context and its queue, which stay for as long as the process runs. Commands of
// the queue run in order.
struct Device {
  Device(const Library& calls, cl_device_id handle, Limits about);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Library& cl;
  const cl_device_id id;
  const Limits limits;
  const cl_context context;
  const cl_command_queue queue;
  std::mutex launching;  // held from a kernel's first argument until it is in the queue
};

// Returns a device by its number: GPUs come first. The variable EDGE_OPENCL_DEVICE leaves only the
// devices with that text in "PLATFORM / NAME". Throws tvm::ffi::Error where there is no such device.
Device& TheDevice(int number);

// The device that this thread's launches go to: TVM sets it before each of them.
int CurrentDevice();
void SetCurrentDevice(int number);

// Whether there is one; never throws.
bool DeviceExists(int number);

}  // namespace opencl

#endif  // OPENCL_DEVICES_H_
