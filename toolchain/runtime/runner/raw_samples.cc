// See raw_samples.h.
#include "raw_samples.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "../model/dtype.h"
#include "../model/fault.h"
#include "../model/host_tensor.h"
#include "../pictures/decoder.h"

namespace runner {
namespace {

using edge::Fault;
using edge::kExitInput;

constexpr int64_t kObjectNumbers = 6;  // of an object
constexpr int32_t kMostMasks = 4;  // as toolchain/device/objects.py has it

std::variant<edge_image, edge_audio> SampleIn(const edge::SafetensorsFile& file, const std::string& name) {
  const auto found = file.entries().find(name);
  if (found == file.entries().end()) throw Fault(kExitInput, "sample " + name + " is missing", file.path());
  const edge::TensorEntry& entry = found->second;
  const bool is_file = entry.shape.size() == 1;
  const auto fits = [](int64_t extent) { return extent <= std::numeric_limits<int32_t>::max(); };
  const bool is_picture = entry.shape.size() == 3 && entry.shape[2] == 3 && fits(entry.shape[0]) && fits(entry.shape[1]);
  if (entry.dtype != edge::FindNamedDType("uint8") || !(is_file || is_picture)) {
    throw Fault(kExitInput,
                "sample " + name + " is " + edge::Describe(*entry.dtype, entry.shape) +
                    ", and must be uint8 of height x width x 3, or of the bytes of a file",
                file.path());
  }
  const auto bytes = file.BytesOf(name);
  const int32_t format = is_file ? pictures::FormatOf(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()) : 0;
  if (is_file && format == 0) {
    edge_audio audio = EDGE_AUDIO;
    audio.format = EDGE_WAV;
    audio.data = bytes.data();
    audio.bytes = bytes.size();
    return audio;
  }
  edge_image image = EDGE_IMAGE;
  image.format = is_file ? format : EDGE_RGB;
  if (is_picture) {
    image.height = static_cast<int32_t>(entry.shape[0]);
    image.width = static_cast<int32_t>(entry.shape[1]);
  }
  image.data = bytes.data();
  image.bytes = bytes.size();
  return image;
}

template <typename Value>
tvm::ffi::Tensor TensorOf(const char* dtype, const std::vector<int64_t>& shape, const Value* values) {
  const edge::DType& type = *edge::FindNamedDType(dtype);
  tvm::ffi::Tensor tensor = edge::HostTensor(type, shape);
  if (edge::SizeOf(tensor) > 0) memcpy(edge::DataOf(tensor), values, edge::SizeOf(tensor));
  return tensor;
}

void Add(const edge_object& object, std::vector<float>* objects, std::vector<float>* points) {
  objects->insert(objects->end(), {static_cast<float>(object.number), object.score, object.left, object.top,
                                   object.right, object.bottom});
  for (int32_t point = 0; point < object.point_count; ++point) {
    const edge_point& place = object.points[point];
    points->insert(points->end(), {place.x, place.y, place.score});
  }
}

}  // namespace

RawSamples::RawSamples(edge_model* model, edge_model* second, const std::string& path, int64_t count)
    : model_(model), second_(second), file_(path) {
  for (int64_t i = 0; i < std::max<int64_t>(count, 1); ++i) {
    samples_.push_back(SampleIn(file_, std::to_string(i)));
  }
  if (file_.entries().size() != samples_.size()) {
    throw Fault(kExitInput, "it has more tensors than samples", file_.path());
  }
}

void RawSamples::RunCrops(const edge_image* image) {
  edge_crops found = EDGE_CROPS;
  if (image == nullptr) throw Fault(kExitInput, "--crops is for pictures", file_.path());
  Check(edge_run_crops(model_, second_, image, pictures::kMostObjects, &found));
  counts_.push_back(found.count);
  for (int32_t i = 0; i < found.count; ++i) {
    const edge_crop& crop = found.crops[i];
    Add(*crop.box, &objects_, &points_);
    crop_counts_.push_back(crop.count);
    for (int32_t k = 0; k < crop.count; ++k) Add(crop.objects[k], &crops_, &crop_points_);
  }
}

void RawSamples::Run(int64_t sample) {
  edge_objects found = EDGE_OBJECTS;
  const auto& given = samples_[static_cast<size_t>(sample)];
  const edge_image* image = std::get_if<edge_image>(&given);
  if (second_ != nullptr) return RunCrops(image);
  Check(image ? edge_run_image(model_, image, &found) : edge_run_audio(model_, std::get_if<edge_audio>(&given), &found));
  counts_.push_back(found.count);
  for (int32_t i = 0; i < found.count; ++i) Add(found.objects[i], &objects_, &points_);
  last_count_ = found.count;
}

// The masks of the first objects of the last picture, one after the other; none where the release has none.
std::vector<uint8_t> RawSamples::Masks() const {
  std::vector<uint8_t> masks;
  for (int32_t i = 0; i < std::min(last_count_, kMostMasks); ++i) {
    edge_mask mask = EDGE_MASK;
    if (edge_object_mask(model_, i, &mask) == EDGE_USAGE) return {};
    const size_t start = masks.size();
    mask.bytes = static_cast<size_t>(mask.width) * static_cast<size_t>(mask.height);
    masks.resize(start + mask.bytes);
    mask.data = masks.data() + start;
    Check(edge_object_mask(model_, i, &mask));
  }
  return masks;
}

void RawSamples::Write(const std::string& path, bool keep_input) const {
  NamedTensors tensors;
  const auto add = [&tensors](const char* name, const std::vector<float>& objects) {
    const int64_t total = static_cast<int64_t>(objects.size()) / kObjectNumbers;
    tensors.emplace_back(name, TensorOf("float32", {total, kObjectNumbers}, objects.data()));
  };
  add("objects", objects_);
  tensors.emplace_back("counts", TensorOf("int64", {count()}, counts_.data()));
  if (second_ != nullptr) {
    add("crops", crops_);
    const int64_t boxes = static_cast<int64_t>(crop_counts_.size());
    tensors.emplace_back("crop_counts", TensorOf("int64", {boxes}, crop_counts_.data()));
  }
  for (const auto& [name, points] : {std::pair("points", &points_), std::pair("crop_points", &crop_points_)}) {
    const int64_t total = static_cast<int64_t>(points->size()) / 3;
    if (total > 0) tensors.emplace_back(name, TensorOf("float32", {total, 3}, points->data()));
  }
  if (keep_input) {
    edge_tensor input = EDGE_TENSOR;
    for (int32_t i = 0; i == 0 || input.state >= 0; ++i) Check(edge_input(model_, i, &input));  // beside a state
    const std::vector<int64_t> shape(input.shape, input.shape + input.rank);
    tensors.emplace_back("input", TensorOf(input.dtype, shape, static_cast<const char*>(input.data)));
  }
  const std::vector<uint8_t> masks = keep_input ? Masks() : std::vector<uint8_t>();
  if (!masks.empty()) {
    tensors.emplace_back("masks", TensorOf("uint8", {static_cast<int64_t>(masks.size())}, masks.data()));
  }
  edge::WriteSafetensors(path, tensors);
}

}  // namespace runner
