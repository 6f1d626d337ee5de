// TVM's modules of OpenCL kernels: read from the bytes that the compiler puts into a library, or
// made of what the compiler of the same process hands over.
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/support/bytes_io.h>
#include <tvm/support/serializer.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devices.h"
#include "kernel.h"
// TVM's own, from the package's sources: what a launch is told.
#include <metadata.h>
#include <pack_args.h>
#include <thread_storage_scope.h>

namespace opencl {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Bytes;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::ffi::Optional;
using tvm::ffi::PackedArgs;
using tvm::ffi::String;
using tvm::runtime::FunctionInfo;
using Functions = tvm::ffi::Map<String, FunctionInfo>;

// What the compiler writes before each kernel's definition.
constexpr char kMark[] = "// Function: ";

size_t ArgumentSize(const DLDataType& type) {
  return type.code == kDLOpaqueHandle ? sizeof(cl_mem) : type.bits / 8;
}

// Some drivers refuse kernels that are declared and not defined: such lines go.
std::string WithoutDeclarations(const std::string& source) {
  std::string kept;
  for (size_t start = 0; start < source.size();) {
    const size_t end = std::min(source.find('\n', start), source.size() - 1) + 1;
    const std::string line = source.substr(start, end - start);
    const bool declares = line.rfind("__kernel ", 0) == 0 && line.find(");\n") != std::string::npos;
    if (!declares) kept += line;
    start = end;
  }
  return kept;
}

// Cuts a module's source into one for each kernel, each with what stands before the first.
std::map<std::string, std::string> Sources(const std::string& whole) {
  std::map<std::string, std::string> found;
  size_t mark = whole.find(kMark);
  const std::string head = whole.substr(0, mark);
  while (mark != std::string::npos) {
    const size_t name = mark + sizeof(kMark) - 1;
    const size_t body = whole.find('\n', name);
    if (body == std::string::npos) break;
    mark = whole.find(kMark, body);
    const size_t end = mark == std::string::npos ? whole.size() : mark;
    found[whole.substr(name, body - name)] =
        head + WithoutDeclarations(whole.substr(body + 1, end - body - 1));
  }
  return found;
}

class OpenClModule final : public tvm::ffi::ModuleObj {
 public:
  OpenClModule(std::string format, Functions functions, std::string source)
      : format_(std::move(format)), functions_(std::move(functions)), source_(std::move(source)) {}

  const char* kind() const final { return "opencl"; }
  int GetPropertyMask() const final { return Module::kBinarySerializable | Module::kRunnable; }
  // The compiler's form: a word for the format, the functions by name, the source.
  Bytes SaveToBytes() const final {
    std::string bytes;
    tvm::support::BytesOutStream stream(&bytes);
    stream.Write(format_);
    stream.Write(static_cast<uint64_t>(functions_.size()));
    for (const auto& [name, info] : functions_) {
      stream.Write(name);
      stream.Write(info);
    }
    stream.Write(source_);
    return Bytes(std::move(bytes));
  }
  String InspectSource(const String&) const final { return source_; }

  Optional<Function> GetFunction(const String& name) final {
    const auto found = functions_.find(name);
    if (found == functions_.end()) return std::nullopt;
    return Launcher((*found).second);
  }

 private:
  Function Launcher(const FunctionInfo& info) {
    const std::string name = info->name;
    std::vector<size_t> sizes;
    for (const DLDataType& type : info->arg_types) sizes.push_back(ArgumentSize(type));
    tvm::runtime::LaunchParamConfig launch;
    launch.Init(sizes.size(), info->launch_param_tags);
    auto kernel = std::make_shared<Kernel>(name, SourceOf(name), std::move(sizes));
    const auto run = [kernel, launch](PackedArgs arguments, Any*, void** addresses) {
      const auto work = launch.Extract(arguments);
      Extent extent;
      for (size_t i = 0; i < 3; ++i) {
        extent.local[i] = work.block_dim(i);
        extent.global[i] = work.block_dim(i) * work.grid_dim(i);
      }
      kernel->Launch(TheDevice(CurrentDevice()), extent, addresses);
    };
    return tvm::runtime::PackFuncVoidAddr(run, info->arg_types, info->arg_extra_tags);
  }

  std::string SourceOf(const std::string& name) {
    if (sources_.empty()) sources_ = Sources(source_);
    const auto found = sources_.find(name);
    return found == sources_.end() ? source_ : found->second;
  }

  const std::string format_;
  const Functions functions_;
  const std::string source_;
  std::map<std::string, std::string> sources_;
};

Module Load(const Bytes& bytes) {
  tvm::support::BytesInStream stream(bytes);
  std::string format;
  uint64_t count = 0;
  bool whole = stream.Read(&format) && stream.Read(&count);
  Functions functions;
  for (uint64_t i = 0; whole && i < count; ++i) {
    String name;
    FunctionInfo info;
    whole = stream.Read(&name) && stream.Read(&info);
    if (whole) functions.Set(name, info);
  }
  std::string source;
  if (!whole || !stream.Read(&source)) {
    TVM_FFI_THROW(ValueError) << "the OpenCL kernels of this library are damaged, or another "
                                 "version of TVM wrote them";
  }
  return Module(tvm::ffi::make_object<OpenClModule>(std::move(format), std::move(functions),
                                                    std::move(source)));
}

Module Create(const Bytes& code, const String& format, const Functions& functions,
              const tvm::ffi::Map<String, String>&) {
  return Module(tvm::ffi::make_object<OpenClModule>(std::string(format), functions,
                                                    std::string(code.data(), code.size())));
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("ffi.Module.load_from_bytes.opencl", Load)
      .def("ffi.Module.create.opencl", Create);
}

}  // namespace opencl
