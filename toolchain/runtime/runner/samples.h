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

// A file of inputs, checked against a model. Faults are kExitInput.
class Samples {
 public:
  // `count` samples, which each tensor holds along a first dimension of its own; 0: one sample,
  // without such a dimension.
  Samples(edge_model* model, const std::string& path, int64_t count);

  int64_t count() const { return count_ == 0 ? 1 : count_; }

  // Gives the model the inputs of one sample.
  void Feed(int64_t sample) const;

 private:
  std::vector<edge_tensor> inputs_;
  edge::SafetensorsFile file_;
  int64_t count_;
};

// The outputs of all samples, under their names, with the same first dimension.
class Outputs {
 public:
  Outputs(edge_model* model, int64_t count);

  // Keeps what the last run computed. Throws as edge_output fails.
  void Take(int64_t sample);

  const NamedTensors& tensors() const { return tensors_; }

  void Write(const std::string& path) const;

 private:
  edge_model* model_;
  NamedTensors tensors_;
};

// Throws what a function of the library reports, if it reports anything.
void Check(int status);

}  // namespace runner

#endif  // RUNNER_SAMPLES_H_
