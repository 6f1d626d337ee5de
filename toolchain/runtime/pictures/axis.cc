// Where a picture lies on the model's input, and which of its elements make an element of the result.
#include <algorithm>
#include <cmath>

#include "pictures.h"

namespace pictures {
namespace {

constexpr int kFixedBits = 11;   // OpenCV's, of a weight

// As Python rounds: halves to the even number.
int32_t Rounded(double value) { return static_cast<int32_t>(std::nearbyint(value)); }

int32_t Clipped(int64_t value, int64_t size) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, 0, size - 1));
}

// OpenCV's INTER_NEAREST and PyTorch's `nearest`.
void MakeNearest(int32_t from, int32_t resized, int32_t offset, Axis* axis) {
  const double step = 1 / (static_cast<double>(resized) / from);
  for (int32_t i = 0; i < axis->size(); ++i) {
    axis->first[i] = Clipped(static_cast<int64_t>(std::floor((i + offset) * step)), from);
  }
}

void MakeFixedPoint(int32_t from, int32_t resized, int32_t offset, Axis* axis) {
  const double step = 1 / (static_cast<double>(resized) / from);
  axis->second.resize(axis->first.size());
  axis->weights.resize(axis->first.size() * 2);
  for (int32_t i = 0; i < axis->size(); ++i) {
    float place = static_cast<float>((i + offset + 0.5) * step - 0.5);
    const int32_t first = static_cast<int32_t>(std::floor(place));
    place -= static_cast<float>(first);
    if (first < 0 || first >= from - 1) place = 0;
    axis->first[i] = Clipped(first, from);
    axis->second[i] = Clipped(axis->first[i] + 1, from);
    axis->weights[i * 2] = Rounded(static_cast<double>((1 - place) * (1 << kFixedBits)));
    axis->weights[i * 2 + 1] = Rounded(static_cast<double>(place * (1 << kFixedBits)));
  }
}

// PyTorch's `bilinear` without align_corners, and TensorFlow's tf.image.resize.
void MakeFloating(int32_t from, int32_t resized, int32_t offset, Axis* axis) {
  const float step = static_cast<float>(from) / static_cast<float>(resized);
  axis->second.resize(axis->first.size());
  axis->fraction.resize(axis->first.size());
  for (int32_t i = 0; i < axis->size(); ++i) {
    const float place = std::max(step * (static_cast<float>(i + offset) + 0.5f) - 0.5f, 0.0f);
    axis->first[i] = Clipped(static_cast<int64_t>(place), from);
    axis->second[i] = Clipped(axis->first[i] + 1, from);
    axis->fraction[i] = place - static_cast<float>(axis->first[i]);
  }
}

// Pillow's BILINEAR: a triangle that is as wide as what it shrinks.
void MakeFilter(int32_t from, int32_t resized, int32_t offset, Axis* axis) {
  const double scale = static_cast<double>(from) / resized, wide = std::max(scale, 1.0);
  axis->stride = static_cast<int32_t>(std::ceil(wide)) * 2 + 1;
  axis->taps.resize(axis->first.size());
  axis->weights.assign(axis->first.size() * static_cast<size_t>(axis->stride), 0);
  axis->scratch.resize(static_cast<size_t>(axis->stride));
  for (int32_t i = 0; i < axis->size(); ++i) {
    const double centre = (i + offset + 0.5) * scale;
    const int32_t first = static_cast<int32_t>(std::max(centre - wide + 0.5, 0.0));
    const int32_t end = static_cast<int32_t>(std::min(centre + wide + 0.5, static_cast<double>(from)));
    double sum = 0;
    for (int32_t k = 0; k < end - first; ++k) {
      axis->scratch[k] = std::max(1 - std::fabs((k + first - centre + 0.5) * (1 / wide)), 0.0);
      sum += axis->scratch[k];
    }
    axis->first[i] = first;
    axis->taps[i] = end - first;
    int32_t* weights = axis->weights.data() + static_cast<size_t>(i) * static_cast<size_t>(axis->stride);
    for (int32_t k = 0; k < end - first; ++k) {
      const double share = sum != 0 ? axis->scratch[k] * (1 / sum) : 0;
      weights[k] = static_cast<int32_t>(0.5 + share * (1 << kFilterBits));
    }
  }
}

}  // namespace

bool Place(const Plan& plan, int32_t width, int32_t height, Placement* place, Reason* reason) {
  if (plan.kernel == kNone) {
    *place = {width, height, 0, 0, 1, 1};
    return (width == plan.width && height == plan.height) ||
           reason->Is("the picture is %dx%d, and without a resize step it must be %dx%d", width, height,
                      plan.width, plan.height);
  }
  const double ratio_x = static_cast<double>(plan.width) / width;
  const double ratio_y = static_cast<double>(plan.height) / height;
  if (plan.fit == kLetterbox) {  // as ultralytics does it
    const double ratio = std::min(ratio_x, ratio_y);
    const int32_t w = std::max(Rounded(width * ratio), 1), h = std::max(Rounded(height * ratio), 1);
    *place = {w, h, (plan.width - w) / 2, (plan.height - h) / 2, ratio, ratio};
  } else if (plan.fit == kCrop) {  // as torchvision's Resize and CenterCrop
    const int64_t side = plan.short_side, shorter = std::min(width, height);
    const int32_t w = static_cast<int32_t>(side * width / shorter);
    const int32_t h = static_cast<int32_t>(side * height / shorter);
    *place = {w, h, -Rounded((w - plan.width) / 2.0), -Rounded((h - plan.height) / 2.0),
              static_cast<double>(w) / width, static_cast<double>(h) / height};
  } else {
    *place = {plan.width, plan.height, 0, 0, ratio_x, ratio_y};
  }
  return true;
}

void MakeAxis(int32_t kernel, int32_t from, int32_t resized, int32_t offset, int32_t input, Axis* axis) {
  axis->margin = std::max(offset, 0);
  const int32_t hidden = std::max(-offset, 0), end = std::min(input, offset + resized);
  axis->first.resize(static_cast<size_t>(end - axis->margin));
  switch (kernel) {
    case kPillow:
      return MakeFilter(from, resized, hidden, axis);
    case kOpenCv:
      return MakeFixedPoint(from, resized, hidden, axis);
    case kTorch:
      return MakeFloating(from, resized, hidden, axis);
    default:
      return MakeNearest(from, resized, hidden, axis);
  }
}

}  // namespace pictures
