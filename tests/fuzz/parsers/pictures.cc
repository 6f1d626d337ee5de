// A plan and a picture as an application gives them: numbers that need not agree, and memory of exactly the
// picture's bytes; then an output of the model.
#include "pictures/pictures.h"

#include <cstring>
#include <vector>

#include "fuzz.h"

namespace {

constexpr int32_t kSide = 64;  // of the model's input, so that one input takes no time
constexpr int64_t kLargestMask = 1 << 16;

pictures::Plan PlanFrom(fuzz::Bytes* bytes) {
  auto plan = bytes->Take<pictures::Plan>();
  plan.width %= kSide + 1;
  plan.height %= kSide + 1;
  plan.short_side %= 4 * kSide;
  plan.candidates %= 4 * kSide;
  plan.classes %= kSide;
  plan.points %= kSide;
  plan.prototypes %= kSide;
  plan.mask_width %= kSide;
  plan.mask_height %= kSide;
  // Few enough cells that the boxes are as many, which is tried for every other plan.
  for (pictures::Level& level : plan.level) {
    level.columns %= 8;
    level.rows %= 8;
    level.anchors %= 4;
  }
  if (plan.blank % 2 == 0 && plan.levels > 0 && plan.levels <= pictures::kMostLevels) {
    plan.table = 0;
    plan.candidates = 0;
    for (int32_t i = 0; i < plan.levels; ++i) {
      plan.candidates += plan.level[i].columns * plan.level[i].rows * plan.level[i].anchors;
    }
  }
  return plan;
}

// A part of a picture is one, and lies within it.
void Crop(const pictures::Picture& picture, const pictures::Object& box) {
  pictures::Reason reason;
  pictures::Picture crop = {};
  pictures::Area area = {};
  if (!pictures::Crop(picture, box, &crop, &area, &reason)) return;
  fuzz::Must(area.width == crop.width && area.height == crop.height && area.left >= 0 && area.top >= 0);
  fuzz::Must(area.left + area.width <= picture.width && area.top + area.height <= picture.height);
  pictures::Picture whole = picture;
  fuzz::Must(CheckPicture(&whole, &reason) && CheckPicture(&crop, &reason));
  fuzz::Must(crop.data >= whole.data && crop.data + crop.bytes <= whole.data + whole.bytes);
  if (crop.format == pictures::kNv12) {
    fuzz::Must(crop.chroma >= whole.chroma && crop.chroma + crop.chroma_bytes <= whole.chroma + whole.chroma_bytes);
  }
}

// Each mask lies in the picture, and nothing is written beyond it.
void Mask(pictures::Pipeline* pipeline, const pictures::Plan& plan, const pictures::Picture& picture) {
  pictures::Reason reason;
  const size_t count = static_cast<size_t>(plan.prototypes) * static_cast<size_t>(plan.mask_width) *
                       static_cast<size_t>(plan.mask_height);
  const std::vector<float> prototypes(count, 0.5f);
  for (size_t i = 0; i < pipeline->objects().size() && plan.prototypes > 0; ++i) {
    const pictures::Area area = pipeline->MaskArea(i);
    fuzz::Must(area.left >= 0 && area.top >= 0 && area.left + area.width <= picture.width &&
               area.top + area.height <= picture.height);
    if (area.width < 1 || area.height < 1 || int64_t{area.width} * area.height > kLargestMask) continue;
    std::vector<uint8_t> mask(static_cast<size_t>(area.width) * static_cast<size_t>(area.height), 7);
    fuzz::Must(pipeline->FillMask(i, prototypes.data(), count, mask.data(), static_cast<size_t>(area.width), &reason));
    for (const uint8_t value : mask) fuzz::Must(value <= 1);
    break;
  }
}

// The numbers again and again, as many as a plan reads beside one output: boxes, and levels in memory of their own.
std::vector<float> Repeated(const std::vector<float>& numbers, size_t count) {
  std::vector<float> result(count, 0.5f);
  for (size_t i = 0; i < count && !numbers.empty(); ++i) result[i] = numbers[i % numbers.size()];
  return result;
}

pictures::Outputs Outputs(const pictures::Plan& plan, const std::vector<float>& numbers, std::vector<float>* boxes,
                          std::vector<std::vector<float>>* maps, std::vector<pictures::Values>* levels) {
  if (plan.head == pictures::kBoxes) {
    const size_t box = 4 + static_cast<size_t>(plan.points) * static_cast<size_t>(plan.point_numbers);
    *boxes = Repeated(numbers, box * static_cast<size_t>(plan.candidates));
  }
  for (int32_t i = 0; i < plan.levels; ++i) {
    const pictures::Level& level = plan.level[i];
    const int64_t count = int64_t{level.columns} * level.rows * level.anchors * (plan.classes + 5);
    maps->push_back(Repeated(numbers, static_cast<size_t>(count)));
  }
  for (const std::vector<float>& map : *maps) levels->push_back({map.data(), map.size()});
  return {numbers.data(), numbers.size(), boxes->data(), boxes->size(), levels->data()};
}

void Prepare(pictures::Pipeline* pipeline, const pictures::Picture& picture) {
  pictures::Reason reason;
  const size_t size = pipeline->input_bytes();
  std::vector<uint8_t> first(size, 1), second(size, 2);
  const bool made = pipeline->Prepare(picture, first.data(), size, &reason);
  fuzz::Must(made == (reason.text[0] == '\0'));
  if (!made) return;
  // Every byte is written, and again the same.
  fuzz::Must(pipeline->Prepare(picture, second.data(), size, &reason) && first == second);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes bytes(data, size);
  const pictures::Plan plan = PlanFrom(&bytes);
  pictures::Reason reason;
  if (!CheckPlan(plan, &reason)) return 0;
  const std::vector<float> table(4 * static_cast<size_t>(plan.table), 1.5f);
  fuzz::Must(CheckTable(plan, table.size(), &reason));
  pictures::Pipeline pipeline(plan, table.data());
  pictures::Picture picture = {};
  picture.format = bytes.Take<int8_t>();
  picture.width = bytes.Take<int32_t>();
  picture.height = bytes.Take<int32_t>();
  picture.stride = bytes.Take<uint32_t>();
  picture.chroma_stride = bytes.Take<uint32_t>();
  const size_t values = bytes.Take<uint16_t>() % (bytes.size() / sizeof(float) + 1);
  const auto output = bytes.Copy(values * sizeof(float));
  const bool apart = bytes.Take<uint8_t>() % 2 == 1;
  picture.chroma_bytes = apart ? bytes.size() / 3 : 0;
  const auto chroma = bytes.Copy(picture.chroma_bytes);
  picture.chroma = apart ? chroma.get() : nullptr;
  picture.bytes = bytes.size();
  const auto pixels = bytes.Copy(picture.bytes);
  picture.data = pixels.get();
  Prepare(&pipeline, picture);
  std::vector<float> numbers(values);
  if (values > 0) memcpy(numbers.data(), output.get(), values * sizeof(float));
  if (values > 3) Crop(picture, {0, 0, numbers[0], numbers[1], numbers[2], numbers[3]});
  std::vector<float> boxes;
  std::vector<std::vector<float>> maps;
  std::vector<pictures::Values> levels;
  const pictures::Outputs outputs = Outputs(plan, numbers, &boxes, &maps, &levels);
  if (pipeline.Find(picture.width, picture.height, outputs, &reason)) {
    fuzz::Must(pipeline.objects().size() <= static_cast<size_t>(plan.most));
    fuzz::Must(pipeline.points().size() == pipeline.objects().size() * static_cast<size_t>(plan.points));
    Mask(&pipeline, plan, picture);
    for (const pictures::Object& object : pipeline.objects()) {
      fuzz::Must(object.label >= 0 && object.label < plan.classes);
      fuzz::Must(plan.head == pictures::kLabels || object.score > plan.score);
    }
  }
  return 0;
}
