// One kernel of a module: compiled when it is first launched.
#ifndef OPENCL_KERNEL_H_
#define OPENCL_KERNEL_H_

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "devices.h"

namespace opencl {

// Work-items of a launch along x, y and z: all of them, and those of one work-group.
struct Extent {
  size_t global[3];
  size_t local[3];
};

class Kernel {
 public:
  // `source` is OpenCL C that defines the kernel; `sizes` are the bytes of its arguments.
  Kernel(std::string name, std::string source, std::vector<size_t> sizes)
      : name_(std::move(name)),
        source_(std::move(source)),
        sizes_(std::move(sizes)),
        images_(ImageArguments(source_, sizes_)) {}
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // Puts a launch into a device's queue; `arguments` are the addresses of the arguments' values.
  // Threads may launch at the same time. Throws tvm::ffi::Error.
  void Launch(Device& device, const Extent& extent, void* const* arguments);

 private:
  // What a device has of this kernel. `fresh` is its program if that was made from source and its
  // binary is not kept yet.
  struct Compiled {
    cl_kernel kernel = nullptr;
    bool images = false;  // whether the arguments that may be images are
    cl_program fresh = nullptr;
  };

  static void Release(const Device& device, Compiled* compiled);

  Compiled CompiledFor(Device& device);
  void Compile(const Device& device, Compiled* compiled) const;
  void CheckFloat16(const Device& device) const;
  void CheckLocalMemory(const Device& device, Compiled* compiled) const;
  void SetArguments(Device& device, const Compiled& compiled, void* const* arguments) const;
  void Enqueue(Device& device, const Compiled& compiled, const Extent& extent,
               void* const* arguments) const;
  // Keeps the binary of a kernel after its first launch: some drivers only then compile what the
  // work-groups' size decides, and put that into the binary too.
  void KeepBinary(Device& device);
  [[noreturn]] void FailLaunching(Device& device, cl_kernel kernel, const Extent& extent,
                                  cl_int status) const;

  const std::string name_;
  const std::string source_;
  const std::vector<size_t> sizes_;
  const std::vector<ImageArgument> images_;  // of the arguments, those that may be read as images
  std::mutex compiling_;
  std::map<Device*, Compiled> compiled_;
};

}  // namespace opencl

#endif  // OPENCL_KERNEL_H_
