// The masks of objects: the sum of the model's prototypes, each times the object's coefficient, is positive where the
// object is.
#include <algorithm>
#include <cmath>

#include "pictures.h"

namespace pictures {
namespace {

// Where the middle of a pixel of the picture lies in a prototype: between which of its elements, and how far from the
// first.
struct Between {
  int32_t first, second;
  double share;
};

Between PlaceOf(int32_t pixel, double ratio, int32_t offset, int32_t input, int32_t size) {
  const double place = ((pixel + 0.5) * ratio + offset) * size / input - 0.5;
  const double within = std::clamp(place, 0.0, static_cast<double>(size - 1));
  const int32_t first = static_cast<int32_t>(within);
  return {first, std::min(first + 1, size - 1), within - first};
}

// Whole pixels whose number is not before `low`, and before `high`.
int32_t PixelOf(float side, int32_t size) { return std::min(static_cast<int32_t>(std::ceil(side)), size); }

}  // namespace

Area Pipeline::MaskArea(size_t object) const {
  const Object& box = objects_[object];
  const int32_t left = PixelOf(box.left, picture_width_), top = PixelOf(box.top, picture_height_);
  return {left, top, PixelOf(box.right, picture_width_) - left, PixelOf(box.bottom, picture_height_) - top};
}

// Sums up an area of the prototypes.
void Pipeline::AddPrototypes(const float* coefficients, const float* prototypes, const Area& area) {
  const size_t width = static_cast<size_t>(plan_.mask_width), size = logits_.size();
  for (int32_t y = 0; y < area.height; ++y) {
    const size_t start = static_cast<size_t>(area.top + y) * width + static_cast<size_t>(area.left);
    double* const row = logits_.data() + start;
    std::fill_n(row, area.width, 0.0);
    for (int32_t i = 0; i < plan_.prototypes; ++i) {
      const float* const from = prototypes + static_cast<size_t>(i) * size + start;
      const double coefficient = coefficients[i];
      for (int32_t x = 0; x < area.width; ++x) row[x] += coefficient * from[x];
    }
  }
}

bool Pipeline::FillMask(size_t object, const float* prototypes, size_t count, uint8_t* mask, size_t stride,
                        Reason* reason) {
  const size_t expected = static_cast<size_t>(plan_.prototypes) * logits_.size();
  if (prototypes == nullptr || count != expected) {
    return reason->Is("the output of prototypes has %zu numbers, and the pipeline reads %zu", count, expected);
  }
  const Area area = MaskArea(object);
  if (area.width < 1 || area.height < 1) return true;
  const auto x_of = [&](int32_t pixel) {
    return PlaceOf(area.left + pixel, place_.ratio_x, place_.left, plan_.width, plan_.mask_width);
  };
  const auto y_of = [&](int32_t pixel) {
    return PlaceOf(area.top + pixel, place_.ratio_y, place_.top, plan_.height, plan_.mask_height);
  };
  const int32_t left = x_of(0).first, top = y_of(0).first;
  AddPrototypes(coefficients_.data() + object * static_cast<size_t>(plan_.prototypes), prototypes,
                {left, top, x_of(area.width - 1).second - left + 1, y_of(area.height - 1).second - top + 1});
  const size_t width = static_cast<size_t>(plan_.mask_width);
  for (int32_t row = 0; row < area.height; ++row, mask += stride) {
    const Between y = y_of(row);
    const double* const upper = logits_.data() + static_cast<size_t>(y.first) * width;
    const double* const lower = logits_.data() + static_cast<size_t>(y.second) * width;
    for (int32_t column = 0; column < area.width; ++column) {
      const Between x = x_of(column);
      const double above = (1 - x.share) * upper[x.first] + x.share * upper[x.second];
      const double below = (1 - x.share) * lower[x.first] + x.share * lower[x.second];
      mask[column] = (1 - y.share) * above + y.share * below > 0 ? 1 : 0;
    }
  }
  return true;
}

}  // namespace pictures
