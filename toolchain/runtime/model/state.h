// The state of a model: what a step leaves for the next one, in the memory of what computes.
#ifndef MODEL_STATE_H_
#define MODEL_STATE_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "manifest.h"

namespace edge {

// One tensor for each of the manifest's states. A step reads them in the place of its inputs, and what it
// computes takes their place, without a copy: the memory of the step before is used again by the next one. Of a
// pair that is in place, the step has written what is new into that memory itself.
class State {
 public:
  // Holds zeros.
  State(const Manifest& manifest, DLDevice device);

  void Reset();

  const std::vector<StatePair>& pairs() const { return pairs_; }

  // Has a call read the state where the arguments have the inputs; they are valid until the state changes.
  void Give(std::vector<tvm::ffi::AnyView>* arguments) const;

  // Before a step: a fault of kExitRunFailed where an earlier one failed while it changed the state.
  void Begin();

  // Takes the state from the outputs of a step, and leaves undefined tensors in their place.
  void Take(std::vector<tvm::ffi::Tensor>* outputs);

  // Writes the state to a file that only the same release loads. Faults are kExitUsage, and those of Begin.
  void Save(const std::string& path) const;

  // Replaces the state by that of a file, or leaves it as it is and throws: kExitInput for a damaged file,
  // kExitLoad for that of another release.
  void Load(const std::string& path);

 private:
  void CheckWhole() const;

  const std::vector<StatePair> pairs_;
  const std::vector<TensorSpec> inputs_;
  const std::string release_;  // SHA-256 of its manifest
  const DLDevice device_;
  bool is_whole_ = true;  // false while a step changes it in place
  std::vector<tvm::ffi::Tensor> tensors_;  // in the order of the pairs
};

}  // namespace edge

#endif  // MODEL_STATE_H_
