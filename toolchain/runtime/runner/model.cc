// See model.h.
#include "model.h"

#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/runtime/device_api.h>
#include <tvm/runtime/tensor.h>

#include <algorithm>
#include <utility>

#include "elf_check.h"
#include "fault.h"
#include "safetensors.h"

namespace runner {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::ffi::Tensor;

void CheckInput(const TensorSpec& spec, const SafetensorsFile& file) {
  const auto found = file.entries().find(spec.name);
  if (found == file.entries().end()) {
    throw Fault(kExitInput, "input \"" + spec.name + "\" is missing", file.path());
  }
  const TensorEntry& entry = found->second;
  if (entry.dtype != spec.dtype || entry.shape != spec.shape) {
    throw Fault(kExitInput,
                "input \"" + spec.name + "\" is " + Describe(*entry.dtype, entry.shape) +
                    ", the release wants " + Describe(*spec.dtype, spec.shape),
                file.path());
  }
}

void RefuseUnknownInputs(const Manifest& manifest, const SafetensorsFile& file) {
  for (const auto& [name, entry] : file.entries()) {
    const bool known = std::any_of(manifest.inputs.begin(), manifest.inputs.end(),
                                   [&name = name](const auto& spec) { return spec.name == name; });
    if (!known) {
      throw Fault(kExitInput, "input \"" + name + "\" is not one of this release", file.path());
    }
  }
}

// TVM opens libraries lazily, and an unresolved symbol would end the process at its first call.
// Resolving all of them here makes it an error; the library stays open, so TVM's own opening finds
// it resolved.
void ResolveSymbols(const std::string& path) {
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return;
  const char* reason = dlerror();
  throw Fault(kExitLoad, std::string("cannot load the library: ") + (reason ? reason : "unknown"),
              path);
}

Function Find(const Module& module, const std::string& name, const std::string& path) {
  const auto found = module->GetFunction(name, /*query_imports=*/true);
  if (!found.has_value() || found.value() == nullptr) {
    throw Fault(kExitLoad, "the library has no function \"" + name + "\"", path);
  }
  return found.value();
}

Module LoadLibrary(const std::string& path) {
  CheckLibraryFile(path);
  ResolveSymbols(path);
  return Module::LoadFromFile(path);
}

// A device that is not there is said plainly here, before anything needs it.
DLDevice Usable(DLDeviceType type) {
  const DLDevice device{type, 0};
  tvm::ffi::Any known;
  tvm::runtime::DeviceAPI::Get(device)->GetAttr(device, tvm::runtime::kDeviceName, &known);
  return device;
}

Module StartMachine(const Module& library, DLDevice device, const std::string& path) {
  constexpr int kPooledAllocator = 2;
  const Module machine = Find(library, "vm_load_executable", path)().cast<Module>();
  const auto start = Find(machine, "vm_initialization", path);
  const int type = device.device_type;
  // The device that computes, then the CPU, for shapes; the machine wants each of them once.
  if (type == kDLCPU) {
    start(type, device.device_id, kPooledAllocator);
  } else {
    start(type, device.device_id, kPooledAllocator, static_cast<int>(kDLCPU), 0, kPooledAllocator);
  }
  return machine;
}

Tensor Copied(const Tensor& tensor, DLDevice device) {
  auto copy = tvm::runtime::Tensor::Empty(tensor.shape(), tensor.dtype(), device);
  copy.CopyFrom(tensor);
  return copy;
}

std::vector<Tensor> Flatten(const Any& result) {
  if (auto tensor = result.as<Tensor>()) return {*tensor};
  const auto array = result.as<tvm::ffi::Array<Any>>();
  if (!array) {
    throw Fault(kExitRunFailed, "the model returned a " + result.GetTypeKey() + ", not tensors");
  }
  std::vector<Tensor> tensors;
  for (const Any& item : *array) {
    auto tensor = item.as<Tensor>();
    if (!tensor) {
      throw Fault(kExitRunFailed,
                  "the model returned a " + item.GetTypeKey() + " among its outputs");
    }
    tensors.push_back(*tensor);
  }
  return tensors;
}

void CheckOutput(const TensorSpec& spec, const Tensor& tensor, const std::string& manifest) {
  const DType* dtype = FindDLDType(tensor.dtype());
  const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
  if (dtype != spec.dtype || shape != spec.shape) {
    throw Fault(kExitInput,
                "output \"" + spec.name + "\" is " +
                    (dtype ? Describe(*dtype, shape) : "of a type that cannot be stored") +
                    ", the manifest says " + Describe(*spec.dtype, spec.shape),
                manifest);
  }
  if (!tensor.IsContiguous()) {
    throw Fault(kExitRunFailed, "output \"" + spec.name + "\" is not contiguous");
  }
}

}  // namespace

std::vector<Tensor> LoadInputs(const Manifest& manifest, const std::string& path) {
  const SafetensorsFile file(path);
  for (const TensorSpec& spec : manifest.inputs) CheckInput(spec, file);
  RefuseUnknownInputs(manifest, file);
  std::vector<Tensor> tensors;
  for (const TensorSpec& spec : manifest.inputs) tensors.push_back(file.Load(spec.name));
  return tensors;
}

std::vector<Tensor> LoadParams(const Manifest& manifest) {
  const SafetensorsFile file(manifest.params);
  std::vector<Tensor> tensors;
  for (const std::string& name : manifest.params_order) tensors.push_back(file.Load(name));
  return tensors;
}

Model::Model(const Manifest& manifest)
    : device_(Usable(manifest.device)),
      library_(LoadLibrary(manifest.library)),
      machine_(StartMachine(library_, device_, manifest.library)),
      entry_(Find(machine_, manifest.entry, manifest.library)) {}

void Model::Bind(std::vector<Tensor> inputs, const std::vector<Tensor>& params) {
  held_.clear();
  for (Tensor& input : inputs) held_.push_back(OnDevice(input));
  for (const Tensor& param : params) held_.push_back(OnDevice(param));
  arguments_.assign(held_.begin(), held_.end());
}

Tensor Model::OnDevice(const Tensor& tensor) const {
  return device_.device_type == kDLCPU ? tensor : Copied(tensor, device_);
}

Any Model::Run() const {
  Any result;
  entry_.CallPacked(arguments_.data(), static_cast<int32_t>(arguments_.size()), &result);
  tvm::runtime::DeviceAPI::Get(device_)->StreamSync(device_, nullptr);
  return result;
}

NamedTensors NameOutputs(const Manifest& manifest, const Any& result) {
  const std::vector<Tensor> tensors = Flatten(result);
  if (tensors.size() != manifest.outputs.size()) {
    throw Fault(kExitInput,
                "the model has " + std::to_string(tensors.size()) +
                    " outputs, the manifest names " + std::to_string(manifest.outputs.size()),
                manifest.path);
  }
  NamedTensors named;
  for (size_t i = 0; i < tensors.size(); ++i) {
    CheckOutput(manifest.outputs[i], tensors[i], manifest.path);
    const bool is_here = tensors[i].device().device_type == kDLCPU;
    named.emplace_back(manifest.outputs[i].name,
                       is_here ? tensors[i] : Copied(tensors[i], DLDevice{kDLCPU, 0}));
  }
  return named;
}

}  // namespace runner
