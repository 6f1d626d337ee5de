// See samples.h.
#include "samples.h"

#include <algorithm>
#include <cstring>

#include "../model/dtype.h"
#include "../model/fault.h"
#include "../model/host_tensor.h"

namespace runner {
namespace {

using edge::Fault;
using edge::kExitInput;

// The shape of a tensor that holds so many of them; 0: as it is.
std::vector<int64_t> Stacked(const edge_tensor& tensor, int64_t count) {
  std::vector<int64_t> shape(tensor.shape, tensor.shape + tensor.rank);
  if (count > 0) shape.insert(shape.begin(), count);
  return shape;
}

void CheckInput(const edge_tensor& input, const edge::SafetensorsFile& file, int64_t count) {
  const auto found = file.entries().find(input.name);
  if (found == file.entries().end()) {
    throw Fault(kExitInput, std::string("input \"") + input.name + "\" is missing", file.path());
  }
  const edge::TensorEntry& entry = found->second;
  const edge::DType* wanted = edge::FindNamedDType(input.dtype);
  const std::vector<int64_t> shape = Stacked(input, count);
  if (entry.dtype != wanted || entry.shape != shape) {
    throw Fault(kExitInput,
                std::string("input \"") + input.name + "\" is " +
                    edge::Describe(*entry.dtype, entry.shape) + ", the release wants " +
                    edge::Describe(*wanted, shape),
                file.path());
  }
}

void RefuseUnknown(const std::vector<edge_tensor>& inputs, const edge::SafetensorsFile& file) {
  for (const auto& [name, entry] : file.entries()) {
    const bool known = std::any_of(inputs.begin(), inputs.end(),
                                   [&name = name](const auto& one) { return one.name == name; });
    if (!known) {
      throw Fault(kExitInput, "input \"" + name + "\" is not one of this release", file.path());
    }
  }
}

// Those that are no state.
std::vector<edge_tensor> InputsOf(edge_model* model) {
  std::vector<edge_tensor> inputs;
  for (int32_t i = 0; i < edge_inputs(model); ++i) {
    edge_tensor input = EDGE_TENSOR;
    Check(edge_input(model, i, &input));
    if (input.state < 0) inputs.push_back(input);
  }
  return inputs;
}

}  // namespace

void Check(int status) {
  if (status != EDGE_OK) throw Fault(static_cast<edge::ExitCode>(status), edge_error());
}

Samples::Samples(edge_model* model, const std::string& path, int64_t count, Order order)
    : model_(model),
      inputs_(InputsOf(model)),
      has_state_(inputs_.size() < static_cast<size_t>(edge_inputs(model))),
      file_(path),
      count_(count),
      order_(order) {
  for (const edge_tensor& input : inputs_) CheckInput(input, file_, count);
  RefuseUnknown(inputs_, file_);
}

void Samples::Feed(int64_t sample) const {
  const bool is_first = order_ == Order::kAlone || (order_ == Order::kSequence && sample == 0);
  if (has_state_ && is_first) Check(edge_reset(model_));
  for (const edge_tensor& input : inputs_) {
    const char* start = file_.BytesOf(input.name).data() + static_cast<size_t>(sample) * input.bytes;
    memcpy(input.data, start, input.bytes);
  }
}

void Samples::FeedNext() {
  if (!has_state_) return;
  Feed(next_);
  next_ = (next_ + 1) % count();
}

Outputs::Outputs(edge_model* model, int64_t count) : model_(model) {
  for (int32_t i = 0; i < edge_outputs(model); ++i) {
    edge_tensor output = EDGE_TENSOR;
    Check(edge_output(model, i, &output));
    if (output.state >= 0) continue;
    numbers_.push_back(i);
    tensors_.emplace_back(output.name, edge::HostTensor(*edge::FindNamedDType(output.dtype),
                                                        Stacked(output, count)));
  }
}

void Outputs::Take(int64_t sample) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    edge_tensor output = EDGE_TENSOR;
    Check(edge_output(model_, numbers_[i], &output));
    char* place = edge::DataOf(tensors_[i].second) + static_cast<size_t>(sample) * output.bytes;
    memcpy(place, output.data, output.bytes);
  }
}

void Outputs::Write(const std::string& path) const { edge::WriteSafetensors(path, tensors_); }

}  // namespace runner
