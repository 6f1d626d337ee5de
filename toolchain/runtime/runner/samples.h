// The inputs that a model is run on, one sample after the other, and its outputs.
#ifndef RUNNER_SAMPLES_H_
#define RUNNER_SAMPLES_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../library/edge_model.h"
#include "../model/safetensors.h"

namespace runner {

using NamedTensors = std::vector<std::pair<std::string, tvm::ffi::Tensor>>;

// What samples are to a model with a state: each on its own, from a state of zeros; the steps of a sequence
// that begins so; or those of a sequence that began before.
enum class Order { kAlone, kSequence, kContinued };

// A file of inputs, checked against a model. Faults are kExitInput.
class Samples {
 public:
  // `count` samples, which each tensor holds along a first dimension of its own; 0: one sample,
  // without such a dimension. Inputs that are a state are not in the file.
  Samples(edge_model* model, const std::string& path, int64_t count, Order order);

  int64_t count() const { return count_ == 0 ? 1 : count_; }

  // Gives the model the inputs of one sample, and a state of zeros if the order is not that of a sequence,
  // or the sample its first.
  void Feed(int64_t sample) const;

  // Prepares one of many runs: a model with a state goes through its samples again and again. Another keeps
  // the inputs of the last one.
  void FeedNext();

  // Gives the file's pages back.
  void DropPages() const { file_.DropPages(); }

 private:
  edge_model* model_;
  std::vector<edge_tensor> inputs_;
  bool has_state_;
  edge::SafetensorsFile file_;
  int64_t count_;
  Order order_;
  int64_t next_ = 0;
};

// The same where there may be no samples: then the inputs stay as they are.
inline void FeedNext(Samples* samples) {
  if (samples != nullptr) samples->FeedNext();
}

// The outputs of all samples, under their names, with the same first dimension; without the state.
class Outputs {
 public:
  Outputs(edge_model* model, int64_t count);

  // Keeps what the last run computed. Throws as edge_output fails.
  void Take(int64_t sample);

  const NamedTensors& tensors() const { return tensors_; }

  void Write(const std::string& path) const;

 private:
  edge_model* model_;
  std::vector<int32_t> numbers_;  // of the outputs that are no state
  NamedTensors tensors_;
};

// Throws what a function of the library reports, if it reports anything.
void Check(int status);

}  // namespace runner

#endif  // RUNNER_SAMPLES_H_
