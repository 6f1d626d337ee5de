// From the rows of a picture to the model's input, in one pass over both.
#include <algorithm>
#include <cmath>
#include <utility>

#include "pictures.h"

namespace pictures {

using steps::ElementOf;
using steps::kDivide;
using steps::kFloat32;
using steps::kInt8;
using steps::kMultiply;
using steps::kSubtract;
using steps::SizeOf;

namespace {

constexpr int64_t kMostFiltered = int64_t{1} << 28;  // bytes of a picture that Pillow's filter resized in x

}  // namespace

namespace {

// What a box has beside its classes; only boxes have any.
bool CheckExtras(const Plan& plan) {
  const auto within = [](int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; };
  const bool is_yolo = plan.head == kYoloRows || plan.head == kYoloColumns;
  const bool has_anchors = plan.coding == kDeltas || plan.coding == kLinearDeltas;
  if (has_anchors && plan.points > 0 && plan.point_numbers != 2) return false;
  const int32_t points = is_yolo || has_anchors ? kMostPoints : 0;
  const int32_t prototypes = is_yolo && plan.points == 0 ? kMostPrototypes : 0;
  const int32_t side = plan.prototypes > 0 ? kLargestPrototype : 0;
  return within(plan.points, 0, points) && within(plan.prototypes, 0, prototypes) &&
         within(plan.point_numbers, plan.points > 0 ? 2 : 0, plan.points > 0 ? kMostPointNumbers : 0) &&
         within(plan.mask_width, std::min(side, 1), side) && within(plan.mask_height, std::min(side, 1), side) &&
         within(int64_t{plan.most} * std::max(plan.points, plan.prototypes), 0, kMostExtras);
}

bool CheckLevel(const Level& level) {
  const auto within = [](int32_t value, int32_t high) { return value >= 1 && value <= high; };
  bool ok = within(level.columns, kLargestInput) && within(level.rows, kLargestInput) &&
            within(level.anchors, kMostAnchors) && std::isfinite(level.step_x) && std::isfinite(level.step_y);
  for (int32_t i = 0; ok && i < level.anchors; ++i) {
    ok = std::isfinite(level.size[i][0]) && std::isfinite(level.size[i][1]);
  }
  return ok;
}

// Anchors are those of a table or of levels, one for each box.
bool CheckAnchors(const Plan& plan) {
  const auto within = [](int32_t value, int32_t low, int32_t high) { return value >= low && value <= high; };
  const bool is_grid = plan.head == kGrid, has_deltas = plan.coding == kDeltas || plan.coding == kLinearDeltas;
  if (!within(plan.coding, is_grid ? kYoloV3 : kPlain, is_grid ? kYoloX : kLinearDeltas)) return false;
  if (has_deltas && (plan.head != kBoxes || (plan.form != kCenter && plan.form != kCenterYx))) return false;
  if (!within(plan.storage, kJoined, is_grid ? kCells : kJoined) || !std::isfinite(plan.offset)) return false;
  for (const float value : plan.variance) {
    if (!std::isfinite(value)) return false;
  }
  const int32_t levels = is_grid || has_deltas ? kMostLevels : 0;
  if (!within(plan.levels, 0, levels) || !within(plan.table, 0, has_deltas ? kMostCandidates : 0)) return false;
  int64_t count = plan.table;
  for (int32_t i = 0; i < plan.levels; ++i) {
    const Level& level = plan.level[i];
    if (plan.table > 0 || !CheckLevel(level)) return false;
    count += int64_t{level.columns} * level.rows * level.anchors;
  }
  return levels == 0 || count == plan.candidates;
}

}  // namespace

bool CheckPlan(const Plan& plan, Reason* reason) {
  const auto within = [](int32_t value, int32_t low, int32_t high) { return value >= low && value <= high; };
  bool ok = within(plan.width, 1, kLargestInput) && within(plan.height, 1, kLargestInput) &&
            within(plan.order, kAsRgb, kAsGray) && within(plan.kernel, kNone, kTorch) &&
            within(plan.fit, kStretch, kCrop) && within(plan.pad, 0, kLevels - 1) &&
            within(plan.element, kFloat32, kInt8) && within(plan.operations, 0, kMostOperations) &&
            within(plan.head, kNoHead, kGrid) && within(plan.most, 0, kMostObjects) &&
            within(plan.classes, 0, kMostCandidates) && within(plan.candidates, 0, kMostCandidates);
  if (plan.fit == kCrop) {
    ok = ok && within(plan.short_side, std::max(plan.width, plan.height), 2 * kLargestInput);
  }
  if (plan.head != kNoHead) ok = ok && plan.most > 0 && plan.classes > 0 && plan.candidates > 0;
  if (plan.head == kLabels) {
    ok = ok && plan.most == plan.candidates && within(plan.blank, 0, plan.classes - 1) &&
         within(plan.beam, 0, steps::kWidestBeam) && int64_t{plan.beam} * plan.candidates <= steps::kMostBeamRows;
  }
  for (int32_t i = 0; ok && i < plan.operations; ++i) {
    const Operation& operation = plan.operation[i];
    ok = within(operation.kind, kMultiply, kDivide);
    for (const float value : operation.values) {
      ok = ok && std::isfinite(value) && (operation.kind != kDivide || value != 0);
    }
  }
  ok = ok && within(plan.form, kCenter, kCenterYx) &&
       within(plan.background, 0, plan.head == kBoxes ? plan.classes : 0) && (plan.background == 0 || plan.classes > 1);
  ok = ok && std::isfinite(plan.nms) && std::isfinite(plan.score) && CheckExtras(plan) && CheckAnchors(plan);
  return ok || reason->Is("the release's pipeline has a number that is out of range");
}

Pipeline::Pipeline(const Plan& plan, const float* table)
    : plan_(plan),
      anchors_(MakeAnchors(plan, table)),
      search_({plan.candidates, plan.classes, plan.blank, 0}, plan.head == kLabels ? plan.beam : 0, plan.softmax != 0),
      channels_(plan.order == kAsGray ? 1 : kChannels) {
  MakeTable();
  objects_.reserve(static_cast<size_t>(plan.most));
  if (FindsBoxes(plan.head)) {
    candidates_.reserve(static_cast<size_t>(plan.candidates));
    ranks_.reserve(static_cast<size_t>(plan.candidates));
    boxes_.reserve(static_cast<size_t>(plan.candidates));
    found_.reserve(static_cast<size_t>(plan.most));
    points_.reserve(static_cast<size_t>(plan.most) * static_cast<size_t>(plan.points));
    coefficients_.reserve(static_cast<size_t>(plan.most) * static_cast<size_t>(plan.prototypes));
    logits_.resize(static_cast<size_t>(plan.mask_width) * static_cast<size_t>(plan.mask_height));
  }
}

void Pipeline::Reserve(int32_t width, int32_t height) {
  if (width <= reserved_width_ && height <= reserved_height_) return;
  reserved_width_ = width = std::max(width, reserved_width_);
  reserved_height_ = height = std::max(height, reserved_height_);
  // Sizes are rounded to whole pixels, so a part may shrink by more than the picture does, but by less than twice that.
  const double shrinks = std::max({2.0 * width / plan_.width, 2.0 * height / plan_.height, 1.0});
  const size_t taps = plan_.kernel == kPillow ? static_cast<size_t>(std::ceil(shrinks)) * 2 + 1 : 2;
  for (const auto& [axis, size] : {std::pair(&x_, plan_.width), std::pair(&y_, plan_.height)}) {
    const size_t count = static_cast<size_t>(size);
    for (std::vector<int32_t>* numbers : {&axis->first, &axis->second, &axis->taps}) numbers->reserve(count);
    axis->fraction.reserve(count);
    axis->weights.reserve(count * taps);
    axis->scratch.reserve(taps);
  }
  const size_t channels = static_cast<size_t>(channels_), row = static_cast<size_t>(plan_.width) * channels;
  line_.reserve(static_cast<size_t>(width) * channels);
  levels_.reserve(row);
  if (plan_.kernel == kPillow) filtered_.reserve(std::min(row * static_cast<size_t>(height), size_t{kMostFiltered}));
  for (std::vector<int32_t>& sums : sums_) sums.reserve(row);
  for (std::vector<float>* blend : {&blend_[0], &blend_[1], &row_}) blend->reserve(row);
}

size_t Pipeline::input_bytes() const {
  return static_cast<size_t>(plan_.width) * static_cast<size_t>(plan_.height) *
         static_cast<size_t>(channels_) * SizeOf(plan_.element);
}

float Pipeline::Computed(float level, int32_t channel) const {
  for (int32_t i = 0; i < plan_.operations; ++i) {
    const float value = plan_.operation[i].values[channel];
    switch (plan_.operation[i].kind) {
      case kMultiply:
        level *= value;
        break;
      case kSubtract:
        level -= value;
        break;
      default:
        level /= value;
    }
  }
  return level;
}

void Pipeline::MakeTable() {
  table_.resize(static_cast<size_t>(channels_ * kLevels));
  for (int32_t channel = 0; channel < channels_; ++channel) {
    for (int32_t level = 0; level < kLevels; ++level) {
      table_[static_cast<size_t>(channel * kLevels + level)] =
          ElementOf(plan_.element, Computed(static_cast<float>(level), channel));
    }
  }
}

bool Pipeline::MakeAxes(const Picture& picture, Reason* reason) {
  Placement place;
  if (!Place(plan_, picture.width, picture.height, &place, reason)) return false;
  if (plan_.kernel == kNone || (picture.width == known_width_ && picture.height == known_height_)) return true;
  known_width_ = known_height_ = 0;
  MakeAxis(plan_.kernel, picture.width, place.width, place.left, plan_.width, &x_);
  MakeAxis(plan_.kernel, picture.height, place.height, place.top, plan_.height, &y_);
  if (plan_.kernel == kPillow) {
    const int64_t rows = y_.first.back() + y_.taps.back() - y_.first.front();
    if (int64_t{x_.size()} * channels_ * rows > kMostFiltered) {
      return reason->Is("the picture is too large to be resized as Pillow does it");
    }
  }
  known_width_ = picture.width;
  known_height_ = picture.height;
  return true;
}

bool Pipeline::Prepare(const Picture& picture, void* input, size_t bytes, Reason* reason) {
  Picture checked = picture;
  if (!CheckPicture(&checked, reason) || !MakeAxes(checked, reason)) return false;
  if (input == nullptr || bytes != input_bytes()) {
    return reason->Is("the model's input has %zu bytes, and the pipeline makes %zu", bytes, input_bytes());
  }
  const Rows rows(checked, plan_.order, &line_);
  switch (SizeOf(plan_.element)) {
    case 4:
      Fill(rows, static_cast<uint32_t*>(input));
      break;
    case 2:
      Fill(rows, static_cast<uint16_t*>(input));
      break;
    default:
      Fill(rows, static_cast<uint8_t*>(input));
  }
  return true;
}

template <typename Value>
void Pipeline::Fill(const Rows& rows, Value* input) {
  if (plan_.kernel == kNone) {
    for (int32_t y = 0; y < plan_.height; ++y) Store(y, rows.At(y), input);
    return;
  }
  const int32_t top = y_.margin, bottom = top + y_.size();
  for (int32_t y = 0; y < plan_.height; ++y) {
    const bool outside = y < top || y >= bottom;
    FillMargin(y, 0, outside ? plan_.width : x_.margin, input);
    if (!outside) FillMargin(y, x_.margin + x_.size(), plan_.width, input);
  }
  switch (plan_.kernel) {
    case kPillow:
      return Filtered(rows, input);
    case kOpenCv:
      return FixedPoint(rows, input);
    case kTorch:
      return Floating(rows, input);
    default:
      return Nearest(rows, input);
  }
}

template <typename Value>
void Pipeline::FillMargin(int32_t row, int32_t first, int32_t end, Value* input) const {
  const size_t plane = static_cast<size_t>(plan_.width) * static_cast<size_t>(plan_.height);
  const size_t start = static_cast<size_t>(row) * static_cast<size_t>(plan_.width);
  for (int32_t channel = 0; channel < channels_; ++channel) {
    const Value value = static_cast<Value>(table_[static_cast<size_t>(channel * kLevels + plan_.pad)]);
    for (int32_t x = first; x < end; ++x) {
      const size_t pixel = start + static_cast<size_t>(x);
      input[plan_.channels_first ? static_cast<size_t>(channel) * plane + pixel
                                 : pixel * static_cast<size_t>(channels_) + static_cast<size_t>(channel)] =
          value;
    }
  }
}

// Stores a row of the resized picture, of its levels in the order of pixels.
template <typename Level, typename Value>
void Pipeline::Store(int32_t row, const Level* levels, Value* input) const {
  const size_t channels = static_cast<size_t>(channels_), width = static_cast<size_t>(plan_.width);
  const size_t plane = width * static_cast<size_t>(plan_.height);
  const size_t left = plan_.kernel == kNone ? 0 : static_cast<size_t>(x_.margin);
  const size_t count = plan_.kernel == kNone ? width : x_.first.size();
  const size_t start = static_cast<size_t>(row) * width + left;
  for (size_t channel = 0; channel < channels; ++channel) {
    const uint32_t* table = table_.data() + channel * kLevels;
    const size_t step = plan_.channels_first ? 1 : channels;
    Value* to = input + (plan_.channels_first ? channel * plane + start : start * channels + channel);
    for (size_t x = 0; x < count; ++x, to += step) {
      const Level level = levels[x * channels + channel];
      if constexpr (sizeof(Level) == 1) {
        *to = static_cast<Value>(table[level]);
      } else {
        *to = static_cast<Value>(ElementOf(plan_.element, Computed(level, static_cast<int32_t>(channel))));
      }
    }
  }
}

template <typename Value>
void Pipeline::Nearest(const Rows& rows, Value* input) {
  const size_t channels = static_cast<size_t>(channels_);
  levels_.resize(x_.first.size() * channels);
  for (int32_t i = 0; i < y_.size(); ++i) {
    const uint8_t* row = rows.At(y_.first[i]);
    uint8_t* to = levels_.data();
    for (const int32_t x : x_.first) {
      to = std::copy_n(row + static_cast<size_t>(x) * channels, channels, to);
    }
    Store(y_.margin + i, levels_.data(), input);
  }
}

// Pillow resizes in x first, and rounds in between. A dimension that keeps its size has weights of 1.
template <typename Value>
void Pipeline::Filtered(const Rows& rows, Value* input) {
  const size_t channels = static_cast<size_t>(channels_), width = x_.first.size() * channels;
  const int32_t first = y_.first.front(), end = y_.first.back() + y_.taps.back();
  const auto level = [](int32_t sum) {
    return static_cast<uint8_t>(std::clamp(sum >> kFilterBits, 0, kLevels - 1));
  };
  constexpr int32_t half = 1 << (kFilterBits - 1);
  filtered_.resize(width * static_cast<size_t>(end - first));
  uint8_t* to = filtered_.data();
  for (int32_t y = first; y < end; ++y) {
    const uint8_t* row = rows.At(y);
    for (int32_t x = 0; x < x_.size(); ++x) {
      const int32_t* weights = x_.weights.data() + static_cast<size_t>(x) * static_cast<size_t>(x_.stride);
      const uint8_t* from = row + static_cast<size_t>(x_.first[x]) * channels;
      for (size_t channel = 0; channel < channels; ++channel) {
        int32_t sum = half;
        for (int32_t k = 0; k < x_.taps[x]; ++k) sum += from[static_cast<size_t>(k) * channels + channel] * weights[k];
        *to++ = level(sum);
      }
    }
  }
  levels_.resize(width);
  sums_[0].resize(width);
  for (int32_t y = 0; y < y_.size(); ++y) {
    const int32_t* weights = y_.weights.data() + static_cast<size_t>(y) * static_cast<size_t>(y_.stride);
    std::fill(sums_[0].begin(), sums_[0].end(), half);
    for (int32_t k = 0; k < y_.taps[y]; ++k) {
      const uint8_t* from = filtered_.data() + static_cast<size_t>(y_.first[y] - first + k) * width;
      for (size_t i = 0; i < width; ++i) sums_[0][i] += from[i] * weights[k];
    }
    std::transform(sums_[0].begin(), sums_[0].end(), levels_.begin(), level);
    Store(y_.margin + y, levels_.data(), input);
  }
}

// OpenCV's INTER_LINEAR for 8 bits: 11 binary digits in each direction.
template <typename Value>
void Pipeline::FixedPoint(const Rows& rows, Value* input) {
  const size_t channels = static_cast<size_t>(channels_), width = x_.first.size() * channels;
  int32_t ready[2] = {-1, -1};
  for (std::vector<int32_t>& sums : sums_) sums.resize(width);
  const auto widen = [&](int32_t y, int32_t slot) {
    if (ready[slot] == y) return;
    const uint8_t* row = rows.At(y);
    int32_t* to = sums_[slot].data();
    for (size_t x = 0; x < x_.first.size(); ++x) {
      const uint8_t* first = row + static_cast<size_t>(x_.first[x]) * channels;
      const uint8_t* second = row + static_cast<size_t>(x_.second[x]) * channels;
      for (size_t c = 0; c < channels; ++c) {
        *to++ = first[c] * x_.weights[x * 2] + second[c] * x_.weights[x * 2 + 1];
      }
    }
    ready[slot] = y;
  };
  levels_.resize(width);
  for (int32_t i = 0; i < y_.size(); ++i) {
    if (ready[1] == y_.first[i]) {  // the second row of the last step is the first of this one
      std::swap(sums_[0], sums_[1]);
      std::swap(ready[0], ready[1]);
    }
    const int32_t upper = y_.weights[static_cast<size_t>(i) * 2], lower = y_.weights[static_cast<size_t>(i) * 2 + 1];
    widen(y_.first[i], 0);
    if (lower != 0) widen(y_.second[i], 1);  // at a whole ratio, each second row has no weight
    // Weights and levels are not negative, so only the upper end is limited: without a branch, for vectors.
    const int32_t *const first = sums_[0].data(), *const second = sums_[1].data();
    uint8_t* __restrict const to = levels_.data();
    for (size_t x = 0; x < width; ++x) {
      const int32_t level = ((upper * (first[x] >> 4)) >> 16) + ((lower * (second[x] >> 4)) >> 16) + 2;
      to[x] = static_cast<uint8_t>(std::min(level >> 2, kLevels - 1));
    }
    Store(y_.margin + i, levels_.data(), input);
  }
}

template <typename Value>
void Pipeline::Floating(const Rows& rows, Value* input) {
  const size_t channels = static_cast<size_t>(channels_), width = x_.first.size() * channels;
  for (std::vector<float>& blend : blend_) blend.resize(width);
  row_.resize(width);
  for (int32_t i = 0; i < y_.size(); ++i) {
    const int32_t lines[2] = {y_.first[i], y_.second[i]};
    for (int32_t slot = 0; slot < (y_.fraction[i] != 0 ? 2 : 1); ++slot) {  // at a whole ratio the second has no weight
      const uint8_t* row = rows.At(lines[slot]);
      float* to = blend_[slot].data();
      for (size_t x = 0; x < x_.first.size(); ++x) {
        const uint8_t* first = row + static_cast<size_t>(x_.first[x]) * channels;
        const uint8_t* second = row + static_cast<size_t>(x_.second[x]) * channels;
        const float share = x_.fraction[x];
        for (size_t c = 0; c < channels; ++c) *to++ = (1 - share) * first[c] + share * second[c];
      }
    }
    const float share = y_.fraction[i];
    for (size_t x = 0; x < width; ++x) row_[x] = (1 - share) * blend_[0][x] + share * blend_[1][x];
    Store(y_.margin + i, row_.data(), input);
  }
}

}  // namespace pictures
