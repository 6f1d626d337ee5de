// What a compiled model and TVM's clients call for threads, by TVM's own names.
#include <sched.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/c_backend_api.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "launcher.h"

namespace edge {
namespace {

// TVM's numbers for how threads lie on CPUs.
constexpr int kOneCorePerThread = -2;

int CpuNumber(const std::string& text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 ||
      number >= CPU_SETSIZE) {
    TVM_FFI_THROW(ValueError) << "\"" << text << "\" is not the number of a CPU";
  }
  return number;
}

// mode, number of threads (0: one a CPU) and, if they are to be somewhere, the CPUs.
void ConfigureThreads(tvm::ffi::PackedArgs args, tvm::ffi::Any*) {
  PoolOptions options;
  options.pinned = args[0].cast<int>() == kOneCorePerThread;
  options.threads = args[1].cast<int>();
  if (args.size() > 2) {
    for (const auto& cpu : args[2].cast<tvm::ffi::Array<tvm::ffi::String>>()) {
      options.cpus.push_back(CpuNumber(cpu));
    }
  }
  if (options.threads == 0 && !options.cpus.empty()) {
    options.threads = static_cast<int>(options.cpus.size());
  }
  if (options.threads == 0) options.threads = ThreadPool::UsualSize();
  if (!options.cpus.empty()) StayOn(options.cpus);
  Launcher::SetOwn(options);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def_packed("runtime.config_threadpool", ConfigureThreads)
      .def("runtime.NumThreads", [] { return Launcher::Current().size(); });
}

}  // namespace edge

extern "C" int TVMBackendParallelLaunch(FTVMParallelLambda flambda, void* cdata, int num_task) {
  return edge::Launcher::Current().Launch(flambda, cdata, num_task);
}

// A kernel of ours has none: whoever waits for another task would have to know that it has a thread.
extern "C" int TVMBackendParallelBarrier(int, TVMParallelGroupEnv* env) {
  if (env->num_task == 1) return 0;
  std::fputs("a kernel's tasks wait for each other, which these threads cannot do\n", stderr);
  std::abort();
}
