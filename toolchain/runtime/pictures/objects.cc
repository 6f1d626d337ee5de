// From a model's output to classes, or to boxes in pixels of the picture.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "pictures.h"

namespace pictures {
namespace {

constexpr size_t kMostRanked = 30000;  // candidates that compete, the best ones: as ultralytics has it

float Overlap(const Object& one, const Object& other) {
  const float width = std::min(one.right, other.right) - std::max(one.left, other.left);
  const float height = std::min(one.bottom, other.bottom) - std::max(one.top, other.top);
  if (!(width > 0 && height > 0)) return 0;
  const float shared = width * height;
  const float areas = (one.right - one.left) * (one.bottom - one.top) +
                      (other.right - other.left) * (other.bottom - other.top);
  return shared / (areas - shared);
}

// A place on the model's input as one of the picture, and not beyond its edges.
float Back(float value, int32_t offset, double ratio, int32_t size) {
  const float moved = (value - static_cast<float>(offset)) / static_cast<float>(ratio);
  return std::clamp(moved, 0.0f, static_cast<float>(size));
}

// Numbers of a box beside its classes.
size_t OthersOf(const Plan& plan) {
  const size_t box = plan.head == kYoloRows ? 5 : plan.head == kYoloColumns || plan.head == kDetr ? 4 : 0;
  return box + static_cast<size_t>(plan.points) * static_cast<size_t>(plan.point_numbers) +
         static_cast<size_t>(plan.prototypes);
}

// Where the numbers of the candidates are.
struct Layout {
  const float* boxes;
  const float* scores;
  const float* objectness;  // nullptr: there is none
  size_t box, score;        // from a candidate to the next one
  size_t step;              // from one of its numbers to the next one
};

Layout LayoutOf(const Plan& plan, const Outputs& outputs) {
  const size_t boxes = static_cast<size_t>(plan.candidates), classes = static_cast<size_t>(plan.classes);
  const size_t row = classes + OthersOf(plan);
  const float* first = outputs.scores;
  switch (plan.head) {
    case kYoloRows: return {first, first + 5, first + 4, row, row, 1};
    case kYoloColumns: return {first, first + 4 * boxes, nullptr, 1, 1, boxes};
    case kDetr: return {first, first + 4, nullptr, row, row, 1};
    default: return {outputs.boxes, first, nullptr, 4, classes, 1};
  }
}

// The best class of a candidate, as an object without a box.
Object BestClass(const Plan& plan, const Layout& layout, size_t candidate) {
  const float* scores = layout.scores + candidate * layout.score;
  const float sure = layout.objectness == nullptr ? 1 : layout.objectness[candidate * layout.box];
  const int32_t background = plan.background - 1;
  float highest = -INFINITY;
  Object object = {0, -INFINITY, 0, 0, 0, 0};
  for (int32_t label = 0; label < plan.classes; ++label) {
    const float score = sure * scores[static_cast<size_t>(label) * layout.step];
    highest = std::max(highest, score);
    if (label != background && score > object.score) object = {label, score, 0, 0, 0, 0};
  }
  if (plan.head != kBoxes) return object;
  if (plan.sigmoid != 0) object.score = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(object.score))));
  if (plan.softmax != 0) {
    double sum = 0;
    for (int32_t i = 0; i < plan.classes; ++i) sum += std::exp(static_cast<double>(scores[i] - highest));
    object.score = static_cast<float>(std::exp(static_cast<double>(object.score - highest)) / sum);
  }
  if (background >= 0 && object.label > background) --object.label;
  return object;
}

// Whether the numbers of a candidate are a box, in pixels of the model's input.
bool ReadBox(const Plan& plan, const Layout& layout, size_t candidate, Object* object) {
  const float* numbers = layout.boxes + candidate * layout.box;
  float place[4];
  for (size_t i = 0; i < 4; ++i) place[i] = numbers[i * layout.step];
  if (plan.form == kCornersYx) {
    std::swap(place[0], place[1]);
    std::swap(place[2], place[3]);
  }
  if (plan.shares != 0) {
    for (size_t i = 0; i < 4; ++i) place[i] *= static_cast<float>(i % 2 == 0 ? plan.width : plan.height);
  }
  const float x = place[0], y = place[1];
  const float w = place[2] / 2, h = place[3] / 2;
  const bool is_center = plan.form == kCenter;
  object->left = is_center ? x - w : x;
  object->top = is_center ? y - h : y;
  object->right = is_center ? x + w : place[2];
  object->bottom = is_center ? y + h : place[3];
  return object->right > object->left && object->bottom > object->top && std::isfinite(object->left) &&
         std::isfinite(object->top) && std::isfinite(object->right) && std::isfinite(object->bottom);
}

}  // namespace

bool Pipeline::Find(int32_t width, int32_t height, const Outputs& outputs, Reason* reason) {
  const float* output = outputs.scores;
  objects_.clear();
  found_.clear();
  points_.clear();
  coefficients_.clear();
  if (plan_.head == kNoHead) return true;
  const size_t others = OthersOf(plan_);
  const size_t expected = (static_cast<size_t>(plan_.classes) + others) * static_cast<size_t>(plan_.candidates);
  if (output == nullptr || outputs.count != expected) {
    return reason->Is("the model's output has %zu numbers, and the pipeline reads %zu", outputs.count, expected);
  }
  const size_t numbers = plan_.head == kBoxes ? 4 * static_cast<size_t>(plan_.candidates) : 0;
  if (outputs.box_count != numbers || (numbers > 0 && outputs.boxes == nullptr)) {
    return reason->Is("the model's boxes have %zu numbers, and the pipeline reads %zu", outputs.box_count, numbers);
  }
  if (plan_.head == kClasses) {
    steps::RankClasses({plan_.classes, plan_.softmax, plan_.most, plan_.score}, output, &objects_);
    return true;
  }
  if (plan_.head == kLabels && plan_.beam > 0) return search_.Read(output, &objects_, reason);
  if (plan_.head == kLabels) {
    steps::ReadLabels({plan_.candidates, plan_.classes, plan_.blank, 0}, output, &objects_);
    return true;
  }
  if (width < 1 || height < 1 || !Place(plan_, width, height, &place_, reason)) return false;
  picture_width_ = width;
  picture_height_ = height;
  FindBoxes(outputs);
  Suppress();
  FindPoints(output);
  FindCoefficients(output);
  for (Object& object : objects_) {
    object.left = Back(object.left, place_.left, place_.ratio_x, width);
    object.right = Back(object.right, place_.left, place_.ratio_x, width);
    object.top = Back(object.top, place_.top, place_.ratio_y, height);
    object.bottom = Back(object.bottom, place_.top, place_.ratio_y, height);
  }
  return true;
}

// A number of a box: a row is a box, or else a column.
float Pipeline::NumberOf(const float* output, size_t box, size_t number) const {
  if (plan_.head == kYoloColumns) return output[number * static_cast<size_t>(plan_.candidates) + box];
  return output[box * (static_cast<size_t>(plan_.classes) + OthersOf(plan_)) + number];
}

void Pipeline::FindBoxes(const Outputs& outputs) {
  const Layout layout = LayoutOf(plan_, outputs);
  candidates_.clear();
  boxes_.clear();
  for (size_t box = 0; box < static_cast<size_t>(plan_.candidates); ++box) {
    Object object = BestClass(plan_, layout, box);
    if (!(object.score > plan_.score) || !ReadBox(plan_, layout, box, &object)) continue;
    candidates_.push_back(object);
    boxes_.push_back(static_cast<int32_t>(box));
  }
}

// Keeps the best box of those of one class that overlap.
void Pipeline::Suppress() {
  ranks_.resize(candidates_.size());
  std::iota(ranks_.begin(), ranks_.end(), 0);
  const auto before = [this](int32_t one, int32_t other) {
    const float left = candidates_[static_cast<size_t>(one)].score, right = candidates_[static_cast<size_t>(other)].score;
    return left > right || (left == right && one < other);
  };
  std::sort(ranks_.begin(), ranks_.end(), before);
  if (ranks_.size() > kMostRanked) ranks_.resize(kMostRanked);
  for (const int32_t rank : ranks_) {
    if (objects_.size() == static_cast<size_t>(plan_.most)) break;
    const Object& candidate = candidates_[static_cast<size_t>(rank)];
    const bool is_new = std::none_of(objects_.begin(), objects_.end(), [&](const Object& kept) {
      return kept.label == candidate.label && Overlap(kept, candidate) > plan_.nms;
    });
    if (!is_new) continue;
    objects_.push_back(candidate);
    found_.push_back(boxes_[static_cast<size_t>(rank)]);
  }
}

// A point that is not a number lies at the corner, and is not seen.
void Pipeline::FindPoints(const float* output) {
  const size_t first = static_cast<size_t>(plan_.classes) + (plan_.head == kYoloRows ? 5 : 4);
  const size_t numbers = static_cast<size_t>(plan_.point_numbers);
  for (const int32_t box : found_) {
    for (size_t point = 0; point < static_cast<size_t>(plan_.points); ++point) {
      const auto number = [&](size_t i) {
        return NumberOf(output, static_cast<size_t>(box), first + point * numbers + i);
      };
      const Point found = {Back(number(0), place_.left, place_.ratio_x, picture_width_),
                           Back(number(1), place_.top, place_.ratio_y, picture_height_), numbers > 2 ? number(2) : 1};
      const bool is_point = std::isfinite(found.x) && std::isfinite(found.y) && std::isfinite(found.score);
      points_.push_back(is_point ? found : Point{0, 0, 0});
    }
  }
}

void Pipeline::FindCoefficients(const float* output) {
  const size_t first = static_cast<size_t>(plan_.classes) + (plan_.head == kYoloRows ? 5 : 4);
  for (const int32_t box : found_) {
    for (size_t i = 0; i < static_cast<size_t>(plan_.prototypes); ++i) {
      coefficients_.push_back(NumberOf(output, static_cast<size_t>(box), first + i));
    }
  }
}

}  // namespace pictures
