// See library.h.
#include "library.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>

#include <cstdlib>
#include <iterator>
#include <memory>
#include <mutex>
#include <vector>

namespace opencl {
namespace {

// The loader of the Khronos group first, which knows all vendors' libraries of a machine; then those
// of boards that have Arm's library alone, and of Android.
const char* const kNames[] = {
    "libOpenCL.so.1",
    "libOpenCL.so",
    "libmali.so.1",
    "libmali.so",
    "/vendor/lib64/libOpenCL.so",
    "/system/vendor/lib64/libOpenCL.so",
    "/vendor/lib64/egl/libGLES_mali.so",
    "/system/vendor/lib64/egl/libGLES_mali.so",
};

std::vector<std::string> Candidates() {
  const char* chosen = std::getenv("EDGE_OPENCL_LIBRARY");
  if (chosen != nullptr && *chosen != '\0') return {chosen};
  return {std::begin(kNames), std::end(kNames)};
}

class Symbols {
 public:
  explicit Symbols(void* handle) : handle_(handle) {}

  template <typename Function>
  Symbols& Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (*function == nullptr && missing_.empty()) missing_ = name;
    return *this;
  }

  // One that may be missing: it is null then.
  template <typename Function>
  Symbols& FindIfThere(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle_, name));
    return *this;
  }

  const std::string& missing() const { return missing_; }

 private:
  void* handle_;
  std::string missing_;
};

// Fills in the functions; returns the name of the first one that the library lacks.
std::string Fill(void* handle, Library* library) {
  return Symbols(handle)
      .Find("clGetPlatformIDs", &library->GetPlatformIDs)
      .Find("clGetPlatformInfo", &library->GetPlatformInfo)
      .Find("clGetDeviceIDs", &library->GetDeviceIDs)
      .Find("clGetDeviceInfo", &library->GetDeviceInfo)
      .Find("clCreateContext", &library->CreateContext)
      .Find("clCreateCommandQueue", &library->CreateCommandQueue)
      .Find("clCreateBuffer", &library->CreateBuffer)
      .FindIfThere("clCreateImage", &library->CreateImage)
      .Find("clReleaseMemObject", &library->ReleaseMemObject)
      .Find("clEnqueueReadBuffer", &library->EnqueueReadBuffer)
      .Find("clEnqueueWriteBuffer", &library->EnqueueWriteBuffer)
      .Find("clEnqueueCopyBuffer", &library->EnqueueCopyBuffer)
      .Find("clEnqueueMapBuffer", &library->EnqueueMapBuffer)
      .Find("clEnqueueUnmapMemObject", &library->EnqueueUnmapMemObject)
      .Find("clFlush", &library->Flush)
      .Find("clFinish", &library->Finish)
      .Find("clCreateProgramWithSource", &library->CreateProgramWithSource)
      .Find("clCreateProgramWithBinary", &library->CreateProgramWithBinary)
      .Find("clBuildProgram", &library->BuildProgram)
      .Find("clGetProgramInfo", &library->GetProgramInfo)
      .Find("clGetProgramBuildInfo", &library->GetProgramBuildInfo)
      .Find("clReleaseProgram", &library->ReleaseProgram)
      .Find("clCreateKernel", &library->CreateKernel)
      .Find("clReleaseKernel", &library->ReleaseKernel)
      .Find("clSetKernelArg", &library->SetKernelArg)
      .Find("clGetKernelWorkGroupInfo", &library->GetKernelWorkGroupInfo)
      .Find("clEnqueueNDRangeKernel", &library->EnqueueNDRangeKernel)
      .missing();
}

std::unique_ptr<Library> Opened() {
  std::string tried;
  for (const std::string& name : Candidates()) {
    tried += tried.empty() ? "" : "; ";
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* reason = dlerror();
      tried += reason ? reason : name;
      continue;
    }
    auto library = std::make_unique<Library>();
    library->path = name;
    const std::string missing = Fill(handle, library.get());
    if (missing.empty()) return library;
    dlclose(handle);
    tried += name + ": no OpenCL, as it has no " + missing;
  }
  TVM_FFI_THROW(RuntimeError) << "no OpenCL library on this device: install its vendor's, or name "
                                 "the file in EDGE_OPENCL_LIBRARY (tried: "
                              << tried << ")";
  TVM_FFI_UNREACHABLE();
}

}  // namespace

const Library& TheLibrary() {
  static std::mutex opening;
  static const Library* opened = nullptr;  // never closed: drivers do not outlive that well
  const std::lock_guard<std::mutex> lock(opening);
  if (opened == nullptr) opened = Opened().release();
  return *opened;
}

}  // namespace opencl
