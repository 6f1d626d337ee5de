// See devices.h.
#include "devices.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "status.h"

namespace opencl {
namespace {

constexpr uint32_t kGroup = 16;  // launches that are handed to the device together

// Reads texts; the terminating zero is left out.
template <typename Get>
std::string TextOf(Get get) {
  size_t size = 0;
  if (get(0, nullptr, &size) != CL_SUCCESS || size == 0) return "";
  std::string text(size, '\0');
  if (get(size, text.data(), nullptr) != CL_SUCCESS) return "";
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

class Reader {
 public:
  Reader(const Library& cl, cl_device_id id) : cl_(cl), id_(id) {}

  std::string Text(cl_uint what) const {
    return TextOf([&](size_t size, void* value, size_t* needed) {
      return cl_.GetDeviceInfo(id_, what, size, value, needed);
    });
  }

  // A value of T's very size; zero where the device does not know.
  template <typename T>
  T Number(cl_uint what) const {
    T value = 0;
    return cl_.GetDeviceInfo(id_, what, sizeof(T), &value, nullptr) == CL_SUCCESS ? value : T{0};
  }

  std::vector<uint64_t> Sizes(cl_uint what) const {
    size_t sizes[8] = {};  // as many dimensions as any device has, and more
    size_t needed = 0;
    if (cl_.GetDeviceInfo(id_, what, sizeof(sizes), sizes, &needed) != CL_SUCCESS) return {};
    return {sizes, sizes + needed / sizeof(size_t)};
  }

 private:
  const Library& cl_;
  cl_device_id id_;
};

// Devices say "OpenCL 1.2 and more words".
bool Is12(const std::string& version) {
  int major = 0, minor = 0;
  if (sscanf(version.c_str(), "OpenCL %d.%d", &major, &minor) != 2) return false;
  return major > 1 || (major == 1 && minor >= 2);
}

// For drivers whose mapped memory is not what it should be.
bool CopyIsAskedFor() {
  const char* copy = std::getenv("EDGE_OPENCL_COPY");
  return copy != nullptr && *copy != '\0' && std::string(copy) != "0";
}

// For drivers whose images are not what they should be, and for whoever asks what they gain.
bool ImagesAreRefused() {
  const char* images = std::getenv("EDGE_OPENCL_IMAGES");
  return images != nullptr && std::string(images) == "0";
}

Limits Described(const Library& cl, cl_device_id id, const std::string& platform) {
  const Reader device(cl, id);
  Limits limits;
  limits.platform = platform;
  limits.name = device.Text(CL_DEVICE_NAME);
  limits.version = device.Text(CL_DEVICE_VERSION);
  limits.is_12 = Is12(limits.version);
  limits.driver = device.Text(CL_DRIVER_VERSION);
  limits.is_gpu = (device.Number<cl_bitfield>(CL_DEVICE_TYPE) & CL_DEVICE_TYPE_GPU) != 0;
  const std::string extensions = device.Text(CL_DEVICE_EXTENSIONS);
  limits.has_fp16 = extensions.find("cl_khr_fp16") != std::string::npos;
  limits.keeps_small_halves = (device.Number<cl_bitfield>(CL_DEVICE_HALF_FP_CONFIG) & CL_FP_DENORM) != 0;
  limits.images.of_buffers =
      !ImagesAreRefused() && extensions.find("cl_khr_image2d_from_buffer") != std::string::npos;
  limits.images.width = device.Number<size_t>(CL_DEVICE_IMAGE2D_MAX_WIDTH);
  limits.images.height = device.Number<size_t>(CL_DEVICE_IMAGE2D_MAX_HEIGHT);
  limits.images.pitch = device.Number<cl_uint>(CL_DEVICE_IMAGE_PITCH_ALIGNMENT_KHR);
  limits.shares_memory = !CopyIsAskedFor() && device.Number<cl_bool>(CL_DEVICE_HOST_UNIFIED_MEMORY);
  limits.work_group = device.Number<size_t>(CL_DEVICE_MAX_WORK_GROUP_SIZE);
  limits.work_items = device.Sizes(CL_DEVICE_MAX_WORK_ITEM_SIZES);
  limits.local_memory = device.Number<cl_ulong>(CL_DEVICE_LOCAL_MEM_SIZE);
  limits.global_memory = device.Number<cl_ulong>(CL_DEVICE_GLOBAL_MEM_SIZE);
  limits.largest_buffer = device.Number<cl_ulong>(CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  limits.compute_units = device.Number<cl_uint>(CL_DEVICE_MAX_COMPUTE_UNITS);
  limits.clock_mhz = device.Number<cl_uint>(CL_DEVICE_MAX_CLOCK_FREQUENCY);
  return limits;
}

struct Found {
  cl_device_id id;
  Limits limits;

  std::string Title() const { return limits.platform + " / " + limits.name; }
};

std::vector<cl_platform_id> Platforms(const Library& cl) {
  cl_uint count = 0;
  const cl_int status = cl.GetPlatformIDs(0, nullptr, &count);
  if (status == CL_PLATFORM_NOT_FOUND_KHR) return {};
  Check(status, "listing platforms");
  std::vector<cl_platform_id> platforms(count);
  Check(cl.GetPlatformIDs(count, platforms.data(), nullptr), "listing platforms");
  return platforms;
}

cl_int DevicesOf(const Library& cl, cl_platform_id platform, std::vector<cl_device_id>* devices) {
  cl_uint count = 0;
  const cl_int status = cl.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count);
  if (status != CL_SUCCESS || count == 0) return status;
  devices->resize(count);
  return cl.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, devices->data(), nullptr);
}

// Says why a device cannot be used; empty if it can.
std::string Obstacle(const Library& cl, cl_device_id id) {
  const Reader device(cl, id);
  if (!device.Number<cl_bool>(CL_DEVICE_AVAILABLE)) return "is not available";
  return device.Number<cl_bool>(CL_DEVICE_COMPILER_AVAILABLE) ? "" : "has no compiler";
}

// All devices of all drivers. One driver that fails leaves those of others: it is told where none is left.
class Listing {
 public:
  explicit Listing(const Library& cl) : cl_(cl) {
    for (const cl_platform_id platform : Platforms(cl)) AddPlatform(platform);
    std::stable_sort(found_.begin(), found_.end(), [](const Found& one, const Found& other) {
      return one.limits.is_gpu && !other.limits.is_gpu;
    });
  }

  std::vector<Found> Take() { return std::move(found_); }

  // What there is instead of a device.
  std::string Missing() const {
    return cl_.path + (missing_.empty() ? " finds no driver" : " has drivers without one: " + missing_);
  }

 private:
  void AddPlatform(cl_platform_id platform) {
    const std::string name = TextOf([&](size_t size, void* value, size_t* needed) {
      return cl_.GetPlatformInfo(platform, CL_PLATFORM_NAME, size, value, needed);
    });
    std::vector<cl_device_id> devices;
    const cl_int status = DevicesOf(cl_, platform, &devices);
    if (status != CL_SUCCESS || devices.empty()) AddMissing(name, StatusName(status));
    if (status != CL_SUCCESS) return;
    for (const cl_device_id id : devices) {
      Found one{id, Described(cl_, id, name)};
      const std::string obstacle = Obstacle(cl_, id);
      if (obstacle.empty()) {
        found_.push_back(std::move(one));
      } else {
        AddMissing(one.Title(), obstacle);
      }
    }
  }

  void AddMissing(const std::string& what, const std::string& why) {
    missing_ += (missing_.empty() ? "" : ", ") + what + ": " + why;
  }

  const Library& cl_;
  std::vector<Found> found_;
  std::string missing_;
};

std::vector<Found> ChosenDevices(const Library& cl, std::string* missing) {
  Listing listing(cl);
  *missing = listing.Missing();
  std::vector<Found> all = listing.Take();
  const char* wanted = std::getenv("EDGE_OPENCL_DEVICE");
  if (wanted == nullptr || *wanted == '\0') return all;
  std::vector<Found> chosen;
  std::string others;
  for (Found& one : all) {
    others += (others.empty() ? "" : ", ") + one.Title();
    if (one.Title().find(wanted) != std::string::npos) chosen.push_back(std::move(one));
  }
  if (chosen.empty() && !others.empty()) {
    TVM_FFI_THROW(RuntimeError) << "no OpenCL device has \"" << wanted
                                << "\" in its name, which EDGE_OPENCL_DEVICE asks for; there are: "
                                << others << ": unset it, or take a text of one of these names";
  }
  return chosen;
}

cl_context NewContext(const Library& cl, cl_device_id id) {
  cl_int status = CL_SUCCESS;
  const cl_context made = cl.CreateContext(nullptr, 1, &id, nullptr, nullptr, &status);
  Check(status, "making a context");
  return made;
}

cl_command_queue NewQueue(const Library& cl, cl_context context, cl_device_id id) {
  cl_int status = CL_SUCCESS;
  const cl_command_queue made = cl.CreateCommandQueue(context, id, 0, &status);
  Check(status, "making a queue");
  return made;
}

// All devices, each opened when it is first used.
class Opened {
 public:
  Device& Get(int number) {
    const std::lock_guard<std::mutex> lock(opening_);
    if (found_.empty()) found_ = ChosenDevices(TheLibrary(), &missing_);
    opened_.resize(found_.size());
    if (number < 0 || static_cast<size_t>(number) >= found_.size()) FailWithout(number);
    Device*& device = opened_[static_cast<size_t>(number)];
    if (device == nullptr) {
      const Found& one = found_[static_cast<size_t>(number)];
      device = new Device(TheLibrary(), one.id, one.limits);
    }
    return *device;
  }

 private:
  [[noreturn]] void FailWithout(int number) const {
    std::string all;
    for (const Found& one : found_) all += (all.empty() ? "" : ", ") + one.Title();
    if (all.empty()) {
      TVM_FFI_THROW(RuntimeError) << "there is no OpenCL device " << number << ": " << missing_
                                  << "; `toolchain doctor` with its board and host names what brings one, and "
                                     "EDGE_OPENCL_LIBRARY names another library";
    }
    TVM_FFI_THROW(RuntimeError) << "there is no OpenCL device " << number << ": " << TheLibrary().path
                                << " knows " << found_.size() << " of them, counted from 0: " << all;
    TVM_FFI_UNREACHABLE();
  }

  std::mutex opening_;
  std::vector<Found> found_;
  std::string missing_;  // what there is instead, where nothing was found
  std::vector<Device*> opened_;
};

thread_local int current = 0;

Opened& All() {
  static auto* all = new Opened();  // never destroyed: threads may use it until the process ends
  return *all;
}

}  // namespace

Device::Device(const Library& calls, cl_device_id handle, Limits about)
    : cl(calls),
      id(handle),
      limits(std::move(about)),
      context(NewContext(calls, handle)),
      queue(NewQueue(calls, context, handle)) {}

void Device::Launched() {
  ++launches_;
  const bool is_power_of_two = (launches_ & (launches_ - 1)) == 0;
  if (launches_ < kGroup ? is_power_of_two : launches_ % kGroup == 0) {
    Check(cl.Flush(queue), "handing launches to the device");
  }
}

cl_int Device::Drain() {
  const cl_int status = cl.Finish(queue);
  const std::lock_guard<std::mutex> lock(launching);
  launches_ = 0;
  return status == CL_SUCCESS ? remembered() : status;
}

void Device::Remember(cl_int status) {
  cl_int none = CL_SUCCESS;
  if (status != CL_SUCCESS) remembered_.compare_exchange_strong(none, status);
}

cl_mem Device::ImageOf(cl_mem buffer, const ImageArgument& wanted) {
  return images_.Of(cl, context, buffer, wanted);
}

void Device::Free(cl_mem buffer) {
  const std::lock_guard<std::mutex> lock(launching);
  images_.Drop(cl, buffer);
  Remember(cl.ReleaseMemObject(buffer));
}

Device& TheDevice(int number) { return All().Get(number); }

int CurrentDevice() { return current; }

void SetCurrentDevice(int number) { current = number; }

bool DeviceExists(int number) {
  try {
    TheDevice(number);
    return true;
  } catch (const tvm::ffi::Error&) {  // no library, no device: the reason is told when it is used
    return false;
  }
}

}  // namespace opencl
