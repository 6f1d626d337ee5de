// See state.h.
#include "state.h"

#include <algorithm>
#include <cstring>

#include "fault.h"
#include "host_tensor.h"
#include "safetensors.h"

namespace edge {
namespace {

using tvm::ffi::Tensor;

// Names of tensors in a file: the digest of a release, and what stands before the name of an input.
constexpr char kRelease[] = "release";
constexpr char kState[] = "state.";

Tensor Zeros(const TensorSpec& spec, DLDevice device) {
  const Tensor zeros = HostTensor(*spec.dtype, spec.shape);
  memset(DataOf(zeros), 0, SizeOf(zeros));
  return device.device_type == kDLCPU ? zeros : Copied(zeros, device);
}

void CheckEntry(const SafetensorsFile& file, const std::string& name, const DType& dtype,
                const std::vector<int64_t>& shape) {
  const auto found = file.entries().find(name);
  if (found == file.entries().end()) {
    throw Fault(kExitInput, "the saved state has no tensor \"" + name + "\"", file.path());
  }
  if (found->second.dtype == &dtype && found->second.shape == shape) return;
  throw Fault(kExitInput,
              "\"" + name + "\" of the saved state is " +
                  Describe(*found->second.dtype, found->second.shape) + " instead of " +
                  Describe(dtype, shape),
              file.path());
}

void CheckRelease(const SafetensorsFile& file, const std::string& release) {
  const std::vector<int64_t> shape{static_cast<int64_t>(release.size())};
  CheckEntry(file, kRelease, *FindNamedDType("uint8"), shape);
  if (file.BytesOf(kRelease) == release) return;
  throw Fault(kExitLoad, "the state was saved by another release", file.path());
}

}  // namespace

State::State(const Manifest& manifest, DLDevice device)
    : pairs_(manifest.states), inputs_(manifest.variants.front().inputs), release_(manifest.sha256), device_(device) {
  Reset();
}

void State::Reset() {
  std::vector<Tensor> zeros;
  for (const StatePair& pair : pairs_) zeros.push_back(Zeros(inputs_[pair.input], device_));
  tensors_ = std::move(zeros);
  is_whole_ = true;
}

void State::CheckWhole() const {
  if (is_whole_) return;
  throw Fault(kExitRunFailed, "a step failed while it changed the state: reset the state, or load a saved one");
}

void State::Begin() {
  CheckWhole();
  is_whole_ = std::none_of(pairs_.begin(), pairs_.end(), [](const StatePair& pair) { return pair.in_place; });
}

void State::Give(std::vector<tvm::ffi::AnyView>* arguments) const {
  for (size_t i = 0; i < pairs_.size(); ++i) (*arguments)[pairs_[i].input] = tensors_[i];
}

void State::Take(std::vector<Tensor>* outputs) {
  for (size_t i = 0; i < pairs_.size(); ++i) {
    tensors_[i] = std::move((*outputs)[pairs_[i].output]);
    (*outputs)[pairs_[i].output] = Tensor();
  }
  is_whole_ = true;
}

void State::Save(const std::string& path) const {
  CheckWhole();
  const Tensor release = HostTensor(*FindNamedDType("uint8"), {static_cast<int64_t>(release_.size())});
  memcpy(DataOf(release), release_.data(), release_.size());
  std::vector<std::pair<std::string, Tensor>> tensors{{kRelease, release}};
  for (size_t i = 0; i < pairs_.size(); ++i) {
    const bool is_here = device_.device_type == kDLCPU;
    tensors.emplace_back(kState + inputs_[pairs_[i].input].name,
                         is_here ? tensors_[i] : Copied(tensors_[i], DLDevice{kDLCPU, 0}));
  }
  WriteSafetensors(path, tensors);
}

void State::Load(const std::string& path) {
  const SafetensorsFile file(path);
  CheckRelease(file, release_);
  std::vector<Tensor> loaded;
  for (const StatePair& pair : pairs_) {
    const TensorSpec& spec = inputs_[pair.input];
    CheckEntry(file, kState + spec.name, *spec.dtype, spec.shape);
    loaded.push_back(Copied(file.Load(kState + spec.name), device_));
  }
  if (file.entries().size() != pairs_.size() + 1) {
    throw Fault(kExitInput, "the saved state has other tensors beside the model's", file.path());
  }
  tensors_ = std::move(loaded);
  is_whole_ = true;
}

}  // namespace edge
