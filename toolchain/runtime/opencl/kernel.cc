// See kernel.h.
#include "kernel.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <tuple>
#include <utility>

#include "binary_cache.h"
#include "build_options.h"
#include "status.h"

namespace opencl {
namespace {

constexpr cl_uint kDimensions = 3;
constexpr size_t kMostLog = 4000;

// A program, released at the end of its scope; kernels keep what they need of it.
class Program {
 public:
  Program(const Library& cl, cl_program handle) : cl_(cl), handle_(handle) {}
  ~Program() {
    if (handle_ != nullptr) cl_.ReleaseProgram(handle_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  cl_program get() const { return handle_; }

  // Returns the program, which somebody else releases from now on.
  cl_program Take() { return std::exchange(handle_, nullptr); }

 private:
  const Library& cl_;
  cl_program handle_;
};

// Everything that a binary depends on.
std::string CacheKey(const Limits& limits, bool images, const std::string& source) {
  return limits.platform + "\n" + limits.name + "\n" + limits.version + "\n" + limits.driver +
         "\n" + BuildOptions(limits, images) + "\n" + source;
}

std::string BuildLog(const Device& device, cl_program program) {
  size_t size = 0;
  device.cl.GetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
  std::string log(size, '\0');
  device.cl.GetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, size, log.data(),
                                nullptr);
  log.resize(std::min({log.find('\0'), log.size(), kMostLog}));
  return log;
}

std::optional<std::string> BinaryOf(const Device& device, cl_program program) {
  size_t size = 0;
  const Library& cl = device.cl;
  if (cl.GetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, nullptr) !=
          CL_SUCCESS ||
      size == 0) {
    return std::nullopt;
  }
  std::string binary(size, '\0');
  char* start = binary.data();
  if (cl.GetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(start), &start, nullptr) !=
      CL_SUCCESS) {
    return std::nullopt;
  }
  return binary;
}

// What may help where the driver compiles no kernel.
std::string AfterBuilding() {
  const char* options = std::getenv("EDGE_OPENCL_OPTIONS");
  if (options != nullptr && *options != '\0') {
    return std::string("EDGE_OPENCL_OPTIONS is ") + options + ": unset it, and run the same command again";
  }
  return "a newer driver may compile it, or, if it was tuned, `toolchain build --no-records` another one";
}

[[noreturn]] void FailBuilding(const Device& device, const std::string& name, cl_int status, const std::string& log) {
  const bool is_refused = status == CL_BUILD_PROGRAM_FAILURE || status == CL_INVALID_BUILD_OPTIONS;
  TVM_FFI_THROW(RuntimeError) << "OpenCL: kernel " << name << " does not compile on " << device.limits.name << ": "
                              << StatusName(status) << "; " << (is_refused ? AfterBuilding() : Advice(status))
                              << (log.empty() ? "" : "; the driver says: ") << log;
  TVM_FFI_UNREACHABLE();
}

cl_int Built(const Device& device, bool images, cl_program program) {
  const std::string options = BuildOptions(device.limits, images);
  return device.cl.BuildProgram(program, 1, &device.id, options.c_str(), nullptr, nullptr);
}

cl_kernel KernelOf(const Device& device, cl_program program, const std::string& name,
                   cl_int* status) {
  return device.cl.CreateKernel(program, name.c_str(), status);
}

// Returns null where the driver does not take the binary (any more).
cl_kernel FromBinary(const Device& device, bool images, const std::string& binary,
                     const std::string& name) {
  const auto* start = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t size = binary.size();
  cl_int status = CL_SUCCESS;
  const Program program(
      device.cl, device.cl.CreateProgramWithBinary(device.context, 1, &device.id, &size, &start,
                                                   nullptr, &status));
  if (status != CL_SUCCESS) return nullptr;
  status = Built(device, images, program.get());
  if (status != CL_SUCCESS) return nullptr;
  const cl_kernel made = KernelOf(device, program.get(), name, &status);
  return status == CL_SUCCESS ? made : nullptr;
}

// Returns the kernel, and its program for its binary to be read.
std::pair<cl_kernel, cl_program> FromSource(const Device& device, bool images, const std::string& source,
                                            const std::string& name) {
  const char* start = source.data();
  const size_t size = source.size();
  cl_int status = CL_SUCCESS;
  Program program(device.cl, device.cl.CreateProgramWithSource(device.context, 1, &start, &size,
                                                               &status));
  if (status != CL_SUCCESS) Fail(status, "handing over the source of kernel " + name);
  status = Built(device, images, program.get());
  if (status != CL_SUCCESS) FailBuilding(device, name, status, BuildLog(device, program.get()));
  const cl_kernel made = KernelOf(device, program.get(), name, &status);
  if (status != CL_SUCCESS) Fail(status, "finding kernel " + name + " in its program");
  return {made, program.Take()};
}

uint64_t Asked(const Device& device, cl_kernel kernel, cl_uint what) {
  uint64_t value = 0;  // size_t or cl_ulong: both fill the low bytes, on the little-endian boards
  const size_t size = what == CL_KERNEL_LOCAL_MEM_SIZE ? sizeof(cl_ulong) : sizeof(size_t);
  device.cl.GetKernelWorkGroupInfo(kernel, device.id, what, size, &value, nullptr);
  return value;
}

std::string Product(const size_t (&sizes)[3]) {
  return std::to_string(sizes[0]) + " x " + std::to_string(sizes[1]) + " x " +
         std::to_string(sizes[2]);
}

}  // namespace

Kernel::~Kernel() {
  for (auto& [device, compiled] : compiled_) Release(*device, &compiled);
}

void Kernel::Release(const Device& device, Compiled* compiled) {
  if (compiled->fresh != nullptr) device.cl.ReleaseProgram(compiled->fresh);
  if (compiled->kernel != nullptr) device.cl.ReleaseKernel(compiled->kernel);
  *compiled = {};
}

void Kernel::Launch(Device& device, const Extent& extent, void* const* arguments) {
  Enqueue(device, CompiledFor(device), extent, arguments);
  KeepBinary(device);
}

void Kernel::Enqueue(Device& device, const Compiled& compiled, const Extent& extent,
                     void* const* arguments) const {
  const std::lock_guard<std::mutex> lock(device.launching);
  SetArguments(device, compiled, arguments);
  const cl_int status =
      device.cl.EnqueueNDRangeKernel(device.queue, compiled.kernel, kDimensions, nullptr, extent.global,
                                     extent.local, 0, nullptr, nullptr);
  if (status != CL_SUCCESS) FailLaunching(device, compiled.kernel, extent, status);
  device.Launched();
}

void Kernel::SetArguments(Device& device, const Compiled& compiled, void* const* arguments) const {
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const auto is_it = [i](const ImageArgument& one) { return one.argument == i; };
    const auto found = std::find_if(images_.begin(), images_.end(), is_it);
    cl_mem image = nullptr;
    const void* value = arguments[i];
    if (compiled.images && found != images_.end()) {
      image = device.ImageOf(*static_cast<const cl_mem*>(value), *found);
      value = &image;
    }
    const cl_int status =
        device.cl.SetKernelArg(compiled.kernel, static_cast<cl_uint>(i), sizes_[i], value);
    if (status != CL_SUCCESS) {
      Fail(status, "setting argument " + std::to_string(i) + " of kernel " + name_);
    }
  }
}

Kernel::Compiled Kernel::CompiledFor(Device& device) {
  const std::lock_guard<std::mutex> lock(compiling_);
  Compiled& compiled = compiled_[&device];
  if (compiled.kernel == nullptr) Compile(device, &compiled);
  return compiled;
}

void Kernel::Compile(const Device& device, Compiled* compiled) const {
  const bool images = !images_.empty() && Fit(device.cl, device.limits.images, images_);
  const auto binary = BinaryCache::Default().Find(CacheKey(device.limits, images, source_));
  CheckFloat16(device);
  if (binary) compiled->kernel = FromBinary(device, images, *binary, name_);
  if (compiled->kernel == nullptr) {
    std::tie(compiled->kernel, compiled->fresh) = FromSource(device, images, source_, name_);
  }
  CheckLocalMemory(device, compiled);
  compiled->images = images;
}

void Kernel::KeepBinary(Device& device) {
  const std::lock_guard<std::mutex> lock(compiling_);
  Compiled& compiled = compiled_[&device];
  if (compiled.fresh == nullptr) return;
  const BinaryCache cache = BinaryCache::Default();
  // A device that fails here says so again to whoever waits for its results.
  if (cache.Keeps() && device.Drain() == CL_SUCCESS) {
    const auto binary = BinaryOf(device, compiled.fresh);
    if (binary) cache.Keep(CacheKey(device.limits, compiled.images, source_), *binary);
  }
  device.cl.ReleaseProgram(std::exchange(compiled.fresh, nullptr));
}

void Kernel::CheckFloat16(const Device& device) const {
  if (source_.find("cl_khr_fp16") == std::string::npos) return;
  if (!device.limits.has_fp16) {
    TVM_FFI_THROW(RuntimeError) << "OpenCL: kernel " << name_ << " computes in half precision, which "
                                << device.limits.name << " does not (it has no cl_khr_fp16): build without --float16";
  }
  // What the compiler calls accumulators in half precision: small products would be lost.
  if (device.limits.keeps_small_halves || source_.find("half_sums") == std::string::npos) return;
  TVM_FFI_THROW(RuntimeError) << "OpenCL: kernel " << name_ << " sums up in half precision, which " << device.limits.name
                              << " takes for zero below 2^-14 (it has no CL_FP_DENORM for halves): build with --float16 "
                                 "instead of --half-sums";
}

void Kernel::CheckLocalMemory(const Device& device, Compiled* compiled) const {
  const uint64_t wanted = Asked(device, compiled->kernel, CL_KERNEL_LOCAL_MEM_SIZE);
  if (wanted <= device.limits.local_memory) return;
  Release(device, compiled);
  TVM_FFI_THROW(RuntimeError) << "OpenCL: kernel " << name_ << " wants " << wanted
                              << " bytes of local memory, " << device.limits.name << " has "
                              << device.limits.local_memory
                              << ": max_shared_memory_per_block in the board file is to say so (see `toolchain hardware`)";
}

void Kernel::FailLaunching(Device& device, cl_kernel kernel, const Extent& extent,
                           cl_int status) const {
  const bool is_too_large = status == CL_INVALID_WORK_GROUP_SIZE || status == CL_INVALID_WORK_ITEM_SIZE;
  const uint64_t most = Asked(device, kernel, CL_KERNEL_WORK_GROUP_SIZE);  // 0 where the driver says nothing any more
  TVM_FFI_THROW(RuntimeError) << "OpenCL: launching kernel " << name_ << " in work-groups of "
                              << Product(extent.local) << ", of " << Product(extent.global)
                              << " work-items, failed on " << device.limits.name
                              << (most ? ", which runs up to " + std::to_string(most) + " of this kernel together" : "")
                              << ": " << StatusName(status) << "; "
                              << (is_too_large ? "max_threads_per_block in the board file is to be no more than the "
                                                 "device's (see `toolchain hardware`)"
                                               : Advice(status));
  TVM_FFI_UNREACHABLE();
}

}  // namespace opencl
