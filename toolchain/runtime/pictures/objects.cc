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
  if (plan.head == kGrid) return 5;
  if (plan.head == kBoxes) return 0;  // they are in an output of their own
  return box + static_cast<size_t>(plan.points) * static_cast<size_t>(plan.point_numbers) +
         static_cast<size_t>(plan.prototypes);
}

// Numbers of a box in the output of boxes alone.
size_t BoxNumbers(const Plan& plan) {
  return 4 + static_cast<size_t>(plan.points) * static_cast<size_t>(plan.point_numbers);
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
    default: return {outputs.boxes, first, nullptr, BoxNumbers(plan), classes, 1};
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

// Sets the corners of a box of x, y, width and height, or of its corners. False if they are not those of a box.
bool SetBox(const float* place, bool is_center, Object* object) {
  const float x = place[0], y = place[1];
  const float w = place[2] / 2, h = place[3] / 2;
  object->left = is_center ? x - w : x;
  object->top = is_center ? y - h : y;
  object->right = is_center ? x + w : place[2];
  object->bottom = is_center ? y + h : place[3];
  return object->right > object->left && object->bottom > object->top && std::isfinite(object->left) &&
         std::isfinite(object->top) && std::isfinite(object->right) && std::isfinite(object->bottom);
}

// Whether the numbers of a candidate are a box, in pixels of the model's input.
bool ReadBox(const Plan& plan, const Layout& layout, size_t candidate, const Anchor* anchor, Object* object) {
  const float* numbers = layout.boxes + candidate * layout.box;
  float place[4];
  for (size_t i = 0; i < 4; ++i) place[i] = numbers[i * layout.step];
  if (plan.form == kCornersYx || plan.form == kCenterYx) {
    std::swap(place[0], place[1]);
    std::swap(place[2], place[3]);
  }
  if (anchor != nullptr) {
    Decode(plan, *anchor, place);
  } else if (plan.shares != 0) {
    for (size_t i = 0; i < 4; ++i) place[i] *= static_cast<float>(i % 2 == 0 ? plan.width : plan.height);
  }
  return SetBox(place, plan.form == kCenter || plan.form == kCenterYx, object);
}

float Sigmoid(float value) { return static_cast<float>(1 / (1 + std::exp(-static_cast<double>(value)))); }

// The best class of a box in a grid, as an object without a box. The best number is the best share, too.
Object BestInGrid(const Plan& plan, const float* numbers, size_t step) {
  const auto share = [&plan](float value) { return plan.sigmoid != 0 ? Sigmoid(value) : value; };
  Object object = {0, -INFINITY, 0, 0, 0, 0};
  const float sure = share(numbers[4 * step]);
  if (!(sure > plan.score)) return object;
  for (int32_t label = 0; label < plan.classes; ++label) {
    const float score = numbers[(5 + static_cast<size_t>(label)) * step];
    if (score > object.score) object = {label, score, 0, 0, 0, 0};
  }
  object.score = sure * share(object.score);
  return object;
}

// The box of a cell as the heads of YOLO networks write it: the middle by the cell, and the size by the anchor's.
bool ReadGridBox(const Plan& plan, const Level& level, size_t anchor, size_t cell, const float* numbers, size_t step,
                 Object* object) {
  const size_t columns = static_cast<size_t>(level.columns);
  const double place[2] = {static_cast<double>(cell % columns), static_cast<double>(cell / columns)};
  const double steps[2] = {static_cast<double>(level.step_x), static_cast<double>(level.step_y)};
  float box[4];
  for (size_t i = 0; i < 2; ++i) {
    const double middle = static_cast<double>(numbers[i * step]), size = static_cast<double>(numbers[(2 + i) * step]);
    const double near = 1 / (1 + std::exp(-middle)), large = 1 / (1 + std::exp(-size));
    const double moved = plan.coding == kYoloX ? middle : plan.coding == kYoloV5 ? 2 * near - 0.5 : near;
    const double grown = plan.coding == kYoloV5 ? 4 * large * large : std::exp(size);
    box[i] = static_cast<float>((moved + place[i]) * steps[i]);
    box[2 + i] = static_cast<float>(grown * static_cast<double>(level.size[anchor][i]));
  }
  return SetBox(box, true, object);
}

size_t CellsOf(const Level& level) { return static_cast<size_t>(level.columns) * static_cast<size_t>(level.rows); }

// Where the numbers of a box in a grid begin, and how far each one is from the one before.
struct GridNumbers {
  size_t first, step;
};

GridNumbers NumbersOf(const Plan& plan, const Level& level, size_t anchor, size_t cell) {
  const size_t row = 5 + static_cast<size_t>(plan.classes), cells = CellsOf(level);
  if (plan.storage == kPlanes) return {anchor * row * cells + cell, cells};
  if (plan.storage == kCells) return {(cell * static_cast<size_t>(level.anchors) + anchor) * row, 1};
  return {(anchor * cells + cell) * row, 1};
}


}  // namespace

bool Pipeline::Find(int32_t width, int32_t height, const Outputs& outputs, Reason* reason) {
  objects_.clear();
  found_.clear();
  points_.clear();
  coefficients_.clear();
  if (plan_.head == kNoHead) return true;
  if (!CheckCounts(outputs, reason)) return false;
  const float* output = outputs.scores;
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
  candidates_.clear();
  boxes_.clear();
  plan_.head == kGrid ? FindInGrid(outputs) : FindBoxes(outputs);
  Suppress();
  FindPoints(outputs);
  FindCoefficients(output);
  for (Object& object : objects_) {
    object.left = Back(object.left, place_.left, place_.ratio_x, width);
    object.right = Back(object.right, place_.left, place_.ratio_x, width);
    object.top = Back(object.top, place_.top, place_.ratio_y, height);
    object.bottom = Back(object.bottom, place_.top, place_.ratio_y, height);
  }
  return true;
}

// Whether the outputs have as many numbers as the pipeline reads.
bool Pipeline::CheckCounts(const Outputs& outputs, Reason* reason) const {
  const size_t candidates = static_cast<size_t>(plan_.candidates);
  const size_t row = static_cast<size_t>(plan_.classes) + OthersOf(plan_);
  if (plan_.head == kGrid && plan_.storage != kJoined) {
    for (int32_t i = 0; i < plan_.levels; ++i) {
      const Level& level = plan_.level[i];
      const size_t expected = CellsOf(level) * static_cast<size_t>(level.anchors) * row;
      const size_t count = outputs.levels == nullptr || outputs.levels[i].data == nullptr ? 0 : outputs.levels[i].count;
      if (count == expected) continue;
      return reason->Is("the output of level %d has %zu numbers, and the pipeline reads %zu", i + 1, count, expected);
    }
    return true;
  }
  const size_t expected = row * candidates;
  if (outputs.scores == nullptr || outputs.count != expected) {
    return reason->Is("the model's output has %zu numbers, and the pipeline reads %zu", outputs.count, expected);
  }
  const size_t numbers = plan_.head == kBoxes ? BoxNumbers(plan_) * candidates : 0;
  if (outputs.box_count != numbers || (numbers > 0 && outputs.boxes == nullptr)) {
    return reason->Is("the model's boxes have %zu numbers, and the pipeline reads %zu", outputs.box_count, numbers);
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
  for (size_t box = 0; box < static_cast<size_t>(plan_.candidates); ++box) {
    Object object = BestClass(plan_, layout, box);
    const Anchor* anchor = anchors_.empty() ? nullptr : &anchors_[box];
    if (!(object.score > plan_.score) || !ReadBox(plan_, layout, box, anchor, &object)) continue;
    candidates_.push_back(object);
    boxes_.push_back(static_cast<int32_t>(box));
  }
}

void Pipeline::FindInGrid(const Outputs& outputs) {
  int32_t first = 0;  // number of the level's first box
  const float* joined = outputs.scores;
  for (int32_t i = 0; i < plan_.levels; ++i) {
    const Level& level = plan_.level[i];
    const size_t cells = CellsOf(level), anchors = static_cast<size_t>(level.anchors);
    const float* data = plan_.storage == kJoined ? joined : outputs.levels[i].data;
    for (size_t anchor = 0; anchor < anchors; ++anchor) {
      for (size_t cell = 0; cell < cells; ++cell) {
        const GridNumbers place = NumbersOf(plan_, level, anchor, cell);
        const float* numbers = data + place.first;
        Object object = BestInGrid(plan_, numbers, place.step);
        if (!(object.score > plan_.score)) continue;
        if (!ReadGridBox(plan_, level, anchor, cell, numbers, place.step, &object)) continue;
        candidates_.push_back(object);
        boxes_.push_back(first + static_cast<int32_t>(anchor * cells + cell));
      }
    }
    first += static_cast<int32_t>(anchors * cells);
    if (plan_.storage == kJoined) joined += anchors * cells * (5 + static_cast<size_t>(plan_.classes));
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

// A place on the model's input as a point of the picture. One that is not a number lies at the corner, and is not seen.
Point Pipeline::PointAt(float x, float y, float score) const {
  const Point point = {Back(x, place_.left, place_.ratio_x, picture_width_),
                       Back(y, place_.top, place_.ratio_y, picture_height_), score};
  return std::isfinite(point.x) && std::isfinite(point.y) && std::isfinite(point.score) ? point : Point{0, 0, 0};
}

void Pipeline::FindPoints(const Outputs& outputs) {
  const size_t first = static_cast<size_t>(plan_.classes) + (plan_.head == kYoloRows ? 5 : 4);
  const size_t numbers = static_cast<size_t>(plan_.point_numbers);
  for (const int32_t number : found_) {
    const size_t box = static_cast<size_t>(number);
    for (size_t point = 0; point < static_cast<size_t>(plan_.points); ++point) {
      if (plan_.head == kBoxes) {  // with anchors
        const float* const from = outputs.boxes + box * BoxNumbers(plan_) + 4 + 2 * point;
        float place[4] = {from[0], from[1], 0, 0};
        if (plan_.form == kCenterYx) std::swap(place[0], place[1]);
        Decode(plan_, anchors_[box], place);
        points_.push_back(PointAt(place[0], place[1], 1));
        continue;
      }
      const auto at = [&](size_t i) { return NumberOf(outputs.scores, box, first + point * numbers + i); };
      points_.push_back(PointAt(at(0), at(1), numbers > 2 ? at(2) : 1));
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
