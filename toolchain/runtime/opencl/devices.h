// The OpenCL devices of this machine.
#ifndef OPENCL_DEVICES_H_
#define OPENCL_DEVICES_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cl.h"
#include "images.h"
#include "library.h"

namespace opencl {

// What a device says of itself. Sizes are in bytes, the clock in MHz.
struct Limits {
  std::string platform;
  std::string name;
  std::string version;
  std::string driver;
  bool is_12 = false;  // OpenCL 1.2 or newer
  bool is_gpu = false;
  bool has_fp16 = false;
  bool keeps_small_halves = false;  // half precision below 2^-14 is not taken for zero
  bool shares_memory = false;  // with the host: what a map gives is the buffer itself
  ImageLimits images;
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

  // After each launch, with `launching` held: hands what is queued to the device in groups, so that
  // it computes while the host still queues. The first goes at once, then groups grow: a hand-over
  // costs as much as several launches.
  void Launched();

  // Waits until the device has nothing left to do. Fails from then on as what was remembered did.
  cl_int Drain();

  // Keeps the first status of a call that failed where nobody could be told.
  void Remember(cl_int status);
  cl_int remembered() const { return remembered_; }

  // A buffer as an image; `launching` is held.
  cl_mem ImageOf(cl_mem buffer, const ImageArgument& wanted);

  // Gives a buffer back, with its images. The driver keeps it until commands that use it have ended. What
  // fails is remembered: tensors are freed where nothing may be thrown.
  void Free(cl_mem buffer);

  const Library& cl;
  const cl_device_id id;
  const Limits limits;
  const cl_context context;
  const cl_command_queue queue;
  std::mutex launching;  // held from a kernel's first argument until it is in the queue

 private:
  Images images_;
  std::atomic<cl_int> remembered_{CL_SUCCESS};
  uint32_t launches_ = 0;  // since the device had nothing left to do
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
