// See functions.h. TVM brings upload, download and remove as well; its own take a full disk for
// success and any path for one of the session.
#include "functions.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "../runner/peak.h"
#include "hardware.h"
#include "log.h"
#include "measuring.h"
#include "version.h"
#include "work_folder.h"

namespace board_server {
namespace {

namespace fs = std::filesystem;
using tvm::ffi::Bytes;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::ffi::String;

// The process serves one session, and TVM calls plain functions.
std::string work_folder;

std::string PathOf(const String& name) {
  const fs::path root(work_folder);
  const fs::path path = (root / std::string(name)).lexically_normal();
  const auto [end, unused] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  if (end != root.end()) {
    TVM_FFI_THROW(ValueError) << "\"" << Printable(name)
                              << "\" is outside the session's folder; name a file in it";
  }
  const std::string text = path.string();
  return text.back() == '/' ? text.substr(0, text.size() - 1) : text;
}

[[noreturn]] void FailWithErrno(const char* what, const String& name) {
  const int error = errno;
  TVM_FFI_THROW(RuntimeError) << "the board cannot " << what << " \"" << Printable(name)
                              << "\": " << strerror(error);
  TVM_FFI_UNREACHABLE();
}

// Aside first: a library of that name may be loaded, and would change under whoever runs it.
void Upload(const String& name, const Bytes& data) {
  const std::string path = PathOf(name), aside = path + ".part";
  if (path == work_folder) {
    errno = EISDIR;
    FailWithErrno("create", name);
  }
  FILE* file = fopen(aside.c_str(), "wbe");
  if (file == nullptr) FailWithErrno("create", name);
  const bool written = fwrite(data.data(), 1, data.size(), file) == data.size();
  // A full disk may show only when the buffer is written out.
  if (fclose(file) == 0 && written && std::rename(aside.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  std::remove(aside.c_str());
  errno = error;
  FailWithErrno("write", name);
}

Bytes Download(const String& name) {
  const std::string path = PathOf(name);
  FILE* file = fopen(path.c_str(), "rbe");
  if (file == nullptr) FailWithErrno("open", name);
  std::string data;
  char buffer[1 << 16];
  for (size_t count = 0; (count = fread(buffer, 1, sizeof(buffer), file)) > 0;) {
    data.append(buffer, count);
  }
  const bool failed = ferror(file) != 0;  // a folder, too, is opened and cannot be read
  const int error = errno;
  fclose(file);
  errno = error;
  if (failed) FailWithErrno("read", name);
  return Bytes(std::move(data));
}

// Clients tidy up without looking: what is not there, or is the folder itself, is no error.
void Remove(const String& name) {
  const std::string path = PathOf(name);
  if (path == work_folder) return;
  if (std::remove(path.c_str()) != 0 && errno != ENOENT) FailWithErrno("remove", name);
}

String ListFolder(const String& name) {
  std::vector<std::string> names;
  if (!ListNames(PathOf(name), &names)) FailWithErrno("list", name);
  std::string text;
  for (const std::string& one : names) text += (text.empty() ? "" : ",") + one;
  return text;
}

Module LoadModule(const String& name) {
  const std::string path = PathOf(name);
  const std::string kind = fs::path(path).extension().string();
  if (kind != ".so") {
    TVM_FFI_THROW(ValueError) << "the board loads shared libraries (.so) and has no linker for \""
                              << Printable(name)
                              << "\"; link it on the host: export_library(\"model.so\", "
                                 "fcompile=<a cross compiler>)";
  }
  return Module::LoadFromFile(path);
}

constexpr char kFillForMeasure[] = "tvm.contrib.random.random_fill_for_measure";

template <typename F>
void Register(const char* name, F function) {
  Function::SetGlobal(name, Function::FromTyped(function), true);
}

}  // namespace

void RegisterFunctions(const std::string& folder) {
  work_folder = folder;
  Register("tvm.rpc.server.workpath", [](String name) { return String(PathOf(name)); });
  Register("tvm.rpc.server.upload", Upload);
  Register("tvm.rpc.server.download", Download);
  Register("tvm.rpc.server.remove", Remove);
  Register("tvm.rpc.server.listdir", ListFolder);
  Register("tvm.rpc.server.load_module", LoadModule);
  Register("edge_toolchain.version", [] { return String(VersionLine()); });
  Register("edge_toolchain.hardware", [] { return String(HardwareLine()); });
  Register("edge_toolchain.conditions", [] { return String(ConditionsLine()); });
  Register("edge_toolchain.canary", Canary);
  Register("edge_toolchain.peak_gflops", [] { return runner::MeasureGflops(); });
  Register("edge_toolchain.peak", [](int64_t threads) {
    return String(runner::PeakLine(runner::MeasurePeak(threads)));
  });
  Register("edge_toolchain.threads", UseThreads);
  Register("edge_toolchain.passing_bytes", SetPassingBytes);
  // A time evaluator calls it with the arguments of the kernel.
  Function::SetGlobal("edge_toolchain.pass_through_caches",
                      Function::FromPacked([](const tvm::ffi::AnyView*, int32_t, tvm::ffi::Any*) {
                        PassThroughCaches();
                      }),
                      true);
  const Function stock = Function::GetGlobalRequired(kFillForMeasure);
  Register(kFillForMeasure, [stock](DLTensor* tensor) {
    if (tensor->device.device_type == kDLCPU) return FillForMeasure(tensor);
    stock(tensor);
  });
}

}  // namespace board_server
