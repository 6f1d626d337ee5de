// A loaded model: a library, its virtual machine and the arguments of its entry function.
#ifndef MODEL_MODEL_H_
#define MODEL_MODEL_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "files.h"
#include "input.h"
#include "manifest.h"
#include "state.h"

namespace edge {

// The parameters of all variants by name, to be read only: most are memory of the mapped file, which all processes
// share, or of its verified copy.
struct Params {
  std::map<std::string, tvm::ffi::Tensor> tensors;
  Guard guard = Guard::kNothing;
};

// Faults are kExitInput.
Params LoadParams(const Manifest& manifest);

class Model {
 public:
  // Loads the library and starts its virtual machine on the manifest's device. Faults are kExitLoad.
  explicit Model(const Manifest& manifest);

  // Has every later call run this variant. Its first selection makes its arguments: inputs, which hold zeros, then
  // the parameters; after that nothing is allocated. A model needs one before anything else.
  void Select(const VariantSpec& variant, const Params& params);

  // Gives the memory of a variant's inputs back; it is not the selected one.
  void Forget(const std::string& variant) { networks_.erase(variant); }

  // Where an input is written to, which stays where it is. A fault of kExitRunFailed where a run lost it.
  char* InputData(size_t number) const;

  // Runs on what the inputs hold now, and leaves them as they are; returns the outputs, in memory that the CPU may read until the
  // next run ends, when the device is done. Faults are kExitRunFailed.
  std::vector<tvm::ffi::Tensor> Run();

  // The same with a state in the place of inputs. What becomes the next state stays in the device's memory.
  std::vector<tvm::ffi::Tensor> Step(const State& state);

  // After the first run: has memory ready for as many outputs again. The machine keeps the last ones
  // until a run has made others.
  void SpareOutputs(const std::vector<tvm::ffi::Tensor>& outputs) const;

  // A tvm::ffi::Error if the device could not be given back memory that outputs were read from.
  void CheckDevice() const { opencl::CheckMappings(device_); }

  // Has the virtual machine call this before and after each call that it makes, with (function, name,
  // whether it is before, result, the call's arguments...); a null function is none.
  void Instrument(const tvm::ffi::Function& hook) const;

  // What computes.
  DLDevice device() const { return device_; }

 private:
  std::vector<tvm::ffi::Tensor> Call(const std::vector<tvm::ffi::AnyView>& arguments,
                                     const std::vector<StatePair>& states);
  bool IsShared(const tvm::ffi::Tensor& output, const std::vector<tvm::ffi::Tensor>& outputs,
                const std::vector<StatePair>& states) const;
  bool IsParam(const tvm::ffi::Tensor& output) const;
  const std::vector<tvm::ffi::AnyView>& RunArguments();
  tvm::ffi::Tensor Readable(const tvm::ffi::Tensor& output) const;

  // What a variant is called with.
  struct Network {
    tvm::ffi::Function entry;
    std::vector<edge::Input> inputs;
    std::vector<tvm::ffi::Tensor> params;
    tvm::ffi::Any held;  // keeps what accelerators have of them in memory of their own
    std::vector<tvm::ffi::AnyView> arguments;
    std::vector<tvm::ffi::AnyView> step_arguments;  // the same, with a state; empty before the first step
    std::vector<tvm::ffi::Tensor> copies;           // of inputs that a run writes to; none before the first run
    std::vector<tvm::ffi::AnyView> run_arguments;   // with these
  };

  Network Bind(const VariantSpec& variant, const Params& params) const;

  const std::string path_;  // of the library
  const std::vector<StatePair> in_place_;  // states whose inputs the network writes to
  DLDevice device_;
  std::unique_ptr<SealedFile> sealed_;  // for as long as its path is that of a loaded library
  tvm::ffi::Module library_;
  tvm::ffi::Module machine_;
  std::map<std::string, Network> networks_;  // by the variant's name
  Network* now_ = nullptr;                   // the selected one
};

// Holds outputs against what the manifest at a path says of them. Faults are kExitInput.
void CheckOutputs(const std::vector<TensorSpec>& specs, const std::vector<tvm::ffi::Tensor>& outputs,
                  const std::string& path);

}  // namespace edge

#endif  // MODEL_MODEL_H_
