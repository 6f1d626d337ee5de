// A loaded model: a library, its virtual machine and the arguments of its entry function.
#ifndef RUNNER_MODEL_H_
#define RUNNER_MODEL_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <string>
#include <utility>
#include <vector>

#include "manifest.h"

namespace runner {

using NamedTensors = std::vector<std::pair<std::string, tvm::ffi::Tensor>>;

// The inputs in the manifest's order, checked against it. Faults are kExitInput.
std::vector<tvm::ffi::Tensor> LoadInputs(const Manifest& manifest, const std::string& path);

// The parameters in the order of the entry function's arguments. Faults are kExitInput.
std::vector<tvm::ffi::Tensor> LoadParams(const Manifest& manifest);

class Model {
 public:
  // Loads the library and starts its virtual machine on the manifest's device. Faults are kExitLoad.
  explicit Model(const Manifest& manifest);

  // The arguments of every later call: the inputs, then the parameters; both are moved to the
  // device, if that is not the CPU.
  void Bind(std::vector<tvm::ffi::Tensor> inputs, const std::vector<tvm::ffi::Tensor>& params);

  // Returns when the device is done.
  tvm::ffi::Any Run() const;

 private:
  tvm::ffi::Tensor OnDevice(const tvm::ffi::Tensor& tensor) const;

  DLDevice device_;
  tvm::ffi::Module library_;
  tvm::ffi::Module machine_;
  tvm::ffi::Function entry_;
  std::vector<tvm::ffi::Tensor> held_;
  std::vector<tvm::ffi::AnyView> arguments_;
};

// The result of a run under the manifest's names, in the CPU's memory, checked against it.
NamedTensors NameOutputs(const Manifest& manifest, const tvm::ffi::Any& result);

}  // namespace runner

#endif  // RUNNER_MODEL_H_
