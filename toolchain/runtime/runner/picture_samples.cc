// See picture_samples.h.
#include "picture_samples.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "../model/dtype.h"
#include "../model/fault.h"
#include "../model/host_tensor.h"

namespace runner {
namespace {

using edge::Fault;
using edge::kExitInput;

constexpr int64_t kObjectNumbers = 6;  // of an object

edge_image PictureIn(const edge::SafetensorsFile& file, const std::string& name) {
  const auto found = file.entries().find(name);
  if (found == file.entries().end()) throw Fault(kExitInput, "picture " + name + " is missing", file.path());
  const edge::TensorEntry& entry = found->second;
  const auto fits = [](int64_t extent) { return extent <= std::numeric_limits<int32_t>::max(); };
  if (entry.dtype != edge::FindNamedDType("uint8") || entry.shape.size() != 3 || entry.shape[2] != 3 ||
      !fits(entry.shape[0]) || !fits(entry.shape[1])) {
    throw Fault(kExitInput,
                "picture " + name + " is " + edge::Describe(*entry.dtype, entry.shape) +
                    ", and must be uint8 of height x width x 3",
                file.path());
  }
  edge_image image = EDGE_IMAGE;
  image.format = EDGE_RGB;
  image.height = static_cast<int32_t>(entry.shape[0]);
  image.width = static_cast<int32_t>(entry.shape[1]);
  image.data = file.BytesOf(name).data();
  image.bytes = file.BytesOf(name).size();
  return image;
}

template <typename Value>
tvm::ffi::Tensor TensorOf(const char* dtype, const std::vector<int64_t>& shape, const Value* values) {
  const edge::DType& type = *edge::FindNamedDType(dtype);
  tvm::ffi::Tensor tensor = edge::HostTensor(type, shape);
  if (edge::SizeOf(tensor) > 0) memcpy(edge::DataOf(tensor), values, edge::SizeOf(tensor));
  return tensor;
}

}  // namespace

PictureSamples::PictureSamples(edge_model* model, const std::string& path, int64_t count)
    : model_(model), file_(path) {
  for (int64_t i = 0; i < std::max<int64_t>(count, 1); ++i) {
    pictures_.push_back(PictureIn(file_, std::to_string(i)));
  }
  if (file_.entries().size() != pictures_.size()) {
    throw Fault(kExitInput, "it has more pictures than samples", file_.path());
  }
}

void PictureSamples::Run(int64_t sample) {
  edge_objects found = EDGE_OBJECTS;
  Check(edge_run_image(model_, &pictures_[static_cast<size_t>(sample)], &found));
  counts_.push_back(found.count);
  for (int32_t i = 0; i < found.count; ++i) {
    const edge_object& object = found.objects[i];
    objects_.insert(objects_.end(), {static_cast<float>(object.number), object.score, object.left, object.top,
                                     object.right, object.bottom});
  }
}

void PictureSamples::Write(const std::string& path, bool keep_input) const {
  NamedTensors tensors;
  const int64_t total = static_cast<int64_t>(objects_.size()) / kObjectNumbers;
  tensors.emplace_back("objects", TensorOf("float32", {total, kObjectNumbers}, objects_.data()));
  tensors.emplace_back("counts", TensorOf("int64", {count()}, counts_.data()));
  if (keep_input) {
    edge_tensor input = EDGE_TENSOR;
    Check(edge_input(model_, 0, &input));
    const std::vector<int64_t> shape(input.shape, input.shape + input.rank);
    tensors.emplace_back("input", TensorOf(input.dtype, shape, static_cast<const char*>(input.data)));
  }
  edge::WriteSafetensors(path, tensors);
}

}  // namespace runner
