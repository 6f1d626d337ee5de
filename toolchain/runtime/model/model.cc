// See model.h.
#include "model.h"

#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/runtime/device_api.h>
#include <tvm/runtime/memory/memory_manager.h>
#include <tvm/runtime/tensor.h>
#include <tvm/runtime/vm/vm.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>

#include "elf_check.h"
#include "fault.h"
#include "files.h"
#include "host_tensor.h"
#include "safetensors.h"

namespace edge {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::ffi::Tensor;
using Memory = tvm::runtime::memory::MemoryManager;

// TVM opens libraries lazily, and an unresolved symbol would end the process at its first call.
// While it is open with all of them resolved, TVM's own opening finds it so.
class Resolved {
 public:
  explicit Resolved(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ != nullptr) return;
    const char* reason = dlerror();
    throw Fault(kExitLoad, std::string("cannot load the library: ") + (reason ? reason : "unknown"),
                path);
  }
  ~Resolved() { dlclose(handle_); }
  Resolved(const Resolved&) = delete;
  Resolved& operator=(const Resolved&) = delete;

 private:
  void* handle_;
};

Function Find(const Module& module, const std::string& name, const std::string& path) {
  const auto found = module->GetFunction(name, /*query_imports=*/true);
  if (!found.has_value() || found.value() == nullptr) {
    throw Fault(kExitLoad, "the library has no function \"" + name + "\"", path);
  }
  return found.value();
}

// The library's own name may be one without a suffix, which TVM would ask for.
Module LoadLibrary(const std::string& path) {
  CheckLibraryFile(path);
  const Resolved resolved(path);
  const auto load = Function::GetGlobalRequired("ffi.Module.load_from_file.so");
  return load(path, "so").cast<Module>();
}

// The library as it was signed, if anybody asks for that: out of the reach of whoever could change
// its file between the check and the loading.
std::unique_ptr<SealedFile> Sealed(const Manifest& manifest) {
  const FileDigest digest = manifest.DigestOf(manifest.library);
  if (digest.sha256.empty()) return nullptr;
  return std::make_unique<SealedFile>(MappedFile(manifest.library, digest).bytes(),
                                      manifest.library);
}

// A device that is not there is said plainly here, before anything needs it.
DLDevice Usable(DLDeviceType type) {
  const DLDevice device{type, 0};
  tvm::ffi::Any known;
  tvm::runtime::DeviceAPI::Get(device)->GetAttr(device, tvm::runtime::kDeviceName, &known);
  return device;
}

// Moves where a tensor begins that lies within other memory: TVM's kernels want an offset of zero. TVM's own function makes
// two more objects, which takes as long as a small kernel; the tensor itself stays what it is, whoever holds it.
Tensor Moved(const Function& general, const Tensor& tensor) {
  auto* const own = const_cast<DLTensor*>(tensor.GetDLTensorPtr());
  const bool is_simple = own->device.device_type == kDLCPU && own->byte_offset % tvm::runtime::kAllocAlignment == 0;
  if (!is_simple) return general(tensor).cast<Tensor>();
  own->data = static_cast<char*>(own->data) + own->byte_offset;
  own->byte_offset = 0;
  return tensor;
}

void MoveInPlace() {
  constexpr char name[] = "vm.builtin.ensure_zero_offset";
  [[maybe_unused]] static const bool once = [&name] {
    const Function general = Function::GetGlobalRequired(name);
    const auto moved = [general](const Tensor& tensor) { return Moved(general, tensor); };
    Function::SetGlobal(name, Function::FromTyped(moved), /*override=*/true);
    return true;
  }();
}

Module StartMachine(const Module& library, DLDevice device, const std::string& path) {
  constexpr int kPooledAllocator = 2;
  MoveInPlace();  // before the machine looks its functions up
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

// An accelerator that copies tensors to memory of its own may keep what it has of these until the
// result is given up: nobody changes them.
Any Held(const std::vector<Tensor>& params) {
  const auto hold = Function::GetGlobal("edge_toolchain.vta.hold");
  if (!hold) return nullptr;
  return (*hold)(tvm::ffi::Array<Tensor>(params.begin(), params.end()));
}

// Has inputs back at the end of a scope.
struct Lent {
  std::vector<edge::Input>* inputs;
  ~Lent() {
    for (edge::Input& input : *inputs) input.TakeBack();
  }
};

// A tensor of the host that is a device's own memory, mapped for as long as the tensor lives.
struct MappedMemory {
  Tensor output;
  std::shared_ptr<opencl::Mapping> mapping;  // ends before the memory is given back

  void AllocData(DLTensor* tensor) const { tensor->data = mapping->data(); }
  void FreeData(DLTensor*) const {}
};

// What a device computed, for the host to read: where it is, if it can be read there, or else a copy.
Tensor Mapped(const Tensor& output) {
  if (opencl::SharesMemory(output.device()) && SizeOf(output) != 0) {
    const auto mapping =
        std::make_shared<opencl::Mapping>(output, opencl::Access::kRead);
    if (IsAligned(mapping->data())) {
      return Tensor::FromNDAlloc(MappedMemory{output, mapping}, output.shape(), output.dtype(),
                                 DLDevice{kDLCPU, 0});
    }
  }
  return Copied(output, DLDevice{kDLCPU, 0});
}

bool IsInputOf(const std::vector<StatePair>& states, size_t number) {
  return std::any_of(states.begin(), states.end(),
                     [number](const StatePair& pair) { return pair.input == number; });
}

std::vector<StatePair> InPlace(const std::vector<StatePair>& states) {
  std::vector<StatePair> pairs;
  std::copy_if(states.begin(), states.end(), std::back_inserter(pairs),
               [](const StatePair& pair) { return pair.in_place; });
  return pairs;
}

bool IsOutputOf(const std::vector<StatePair>& states, size_t number) {
  return std::any_of(states.begin(), states.end(),
                     [number](const StatePair& pair) { return pair.output == number; });
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
}

}  // namespace

Params LoadParams(const Manifest& manifest) {
  const SafetensorsFile file(manifest.params, manifest.DigestOf(manifest.params));
  Params params;
  params.guard = file.guard();
  for (const VariantSpec& variant : manifest.variants) {
    for (const std::string& name : variant.params_order) {
      if (params.tensors.count(name) == 0) params.tensors.emplace(name, file.Load(name));
    }
  }
  return params;
}

Model::Model(const Manifest& manifest)
    : path_(manifest.library),
      in_place_(InPlace(manifest.states)),
      device_(Usable(manifest.device)),
      sealed_(Sealed(manifest)),
      library_(LoadLibrary(sealed_ ? sealed_->path() : manifest.library)),
      machine_(StartMachine(library_, device_, manifest.library)) {
  for (const VariantSpec& variant : manifest.variants) Find(machine_, variant.entry, path_);
}

void Model::Select(const VariantSpec& variant, const Params& params) {
  auto found = networks_.find(variant.entry);
  if (found == networks_.end()) found = networks_.emplace(variant.entry, Bind(variant, params)).first;
  now_ = &found->second;
}

Model::Network Model::Bind(const VariantSpec& variant, const Params& params) const {
  Network network;
  network.entry = Find(machine_, variant.entry, path_);
  network.inputs.reserve(variant.inputs.size());
  for (const TensorSpec& input : variant.inputs) network.inputs.emplace_back(input, device_);
  for (const std::string& name : variant.params_order) {
    const Tensor& param = params.tensors.at(name);
    network.params.push_back(device_.device_type == kDLCPU ? param : Copied(param, device_));
  }
  if (device_.device_type == kDLCPU) network.held = Held(network.params);
  for (const edge::Input& input : network.inputs) network.arguments.emplace_back(input.argument());
  network.arguments.insert(network.arguments.end(), network.params.begin(), network.params.end());
  return network;
}

char* Model::InputData(size_t number) const {
  now_->inputs[number].Check();
  return now_->inputs[number].data();
}

std::vector<Tensor> Model::Run() { return Call(RunArguments(), {}); }

// The network would write to inputs that are a state. It writes to copies of them, which are its outputs.
const std::vector<tvm::ffi::AnyView>& Model::RunArguments() {
  if (in_place_.empty()) return now_->arguments;
  if (now_->run_arguments.empty()) {
    for (const StatePair& pair : in_place_) now_->copies.push_back(Copied(now_->inputs[pair.input].argument(), device_));
    now_->run_arguments = now_->arguments;
    for (size_t i = 0; i < in_place_.size(); ++i) now_->run_arguments[in_place_[i].input] = now_->copies[i];
  }
  for (size_t i = 0; i < in_place_.size(); ++i) {
    memcpy(DataOf(now_->copies[i]), InputData(in_place_[i].input), SizeOf(now_->copies[i]));
  }
  return now_->run_arguments;
}

std::vector<Tensor> Model::Step(const State& state) {
  if (now_->step_arguments.empty()) now_->step_arguments = now_->arguments;
  state.Give(&now_->step_arguments);
  return Call(now_->step_arguments, state.pairs());
}

std::vector<Tensor> Model::Call(const std::vector<tvm::ffi::AnyView>& arguments,
                                const std::vector<StatePair>& states) {
  std::vector<Tensor> readable;
  {
    const Lent lent{&now_->inputs};
    for (size_t i = 0; i < now_->inputs.size(); ++i) {
      if (!IsInputOf(states, i)) now_->inputs[i].Give();
    }
    Any result;
    now_->entry.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
    tvm::runtime::DeviceAPI::Get(device_)->StreamSync(device_, nullptr);
    const std::vector<Tensor> outputs = Flatten(result);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!IsOutputOf(states, i)) {
        readable.push_back(Readable(outputs[i]));
      } else if (IsShared(outputs[i], outputs, states)) {
        readable.push_back(Copied(outputs[i], device_));
      } else {
        readable.push_back(outputs[i]);
      }
    }
  }
  for (const edge::Input& input : now_->inputs) input.Check();
  return readable;
}

Tensor Model::Readable(const Tensor& output) const {
  if (!output.IsContiguous()) throw Fault(kExitRunFailed, "an output is not contiguous");
  if (output.device().device_type == kDLCPU) return IsParam(output) ? Copied(output, device_) : output;
  // One that is an input, which is written to before the next run, is copied.
  for (const edge::Input& input : now_->inputs) {
    if (input.argument().data_ptr() == output.data_ptr()) return Copied(output, DLDevice{kDLCPU, 0});
  }
  return Mapped(output);
}

void Model::SpareOutputs(const std::vector<Tensor>& outputs) const {
  if (device_.device_type != kDLCPU) return;
  std::vector<Tensor> spares;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& output = outputs[i];
    if (IsParam(output) || IsOutputOf(in_place_, i)) continue;
    auto* const allocator = Memory::GetOrCreateAllocator(device_, tvm::runtime::memory::kPooled);
    spares.push_back(allocator->Empty(output.shape(), output.dtype(), device_, std::nullopt));
    memset(DataOf(spares.back()), 0, SizeOf(output));
  }
}

// Whether an application may write to the memory of what becomes a state: it is another output too, or an input.
bool Model::IsShared(const Tensor& output, const std::vector<Tensor>& outputs,
                     const std::vector<StatePair>& states) const {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!IsOutputOf(states, i) && outputs[i].data_ptr() == output.data_ptr()) return true;
  }
  return std::any_of(now_->inputs.begin(), now_->inputs.end(), [&output](const edge::Input& input) {
    return input.argument().data_ptr() == output.data_ptr();
  });
}

// A constant output: the application may write to an output, but not to a parameter.
bool Model::IsParam(const Tensor& output) const {
  return std::any_of(now_->params.begin(), now_->params.end(), [&output](const Tensor& param) {
    return param.data_ptr() == output.data_ptr();
  });
}

void Model::Instrument(const Function& hook) const {
  // Its packed function takes no null, and so cannot end what it began.
  auto* machine = const_cast<tvm::ffi::ModuleObj*>(machine_.operator->());
  static_cast<tvm::runtime::vm::VirtualMachine*>(machine)->SetInstrument(hook);
}

void CheckOutputs(const std::vector<TensorSpec>& specs, const std::vector<Tensor>& outputs,
                  const std::string& path) {
  if (outputs.size() != specs.size()) {
    throw Fault(kExitInput,
                "the model has " + std::to_string(outputs.size()) +
                    " outputs, the manifest names " + std::to_string(specs.size()),
                path);
  }
  for (size_t i = 0; i < outputs.size(); ++i) CheckOutput(specs[i], outputs[i], path);
}

}  // namespace edge
