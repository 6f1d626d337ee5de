// Pictures as cameras deliver them: checks, and rows of RGB, BGR or gray pixels.
#include <algorithm>

#include "pictures.h"

namespace pictures {
namespace {

// BT.601 with levels from 16 to 235, as OpenCV converts it: coefficients with 20 binary digits.
constexpr int kShift = 20, kHalf = 1 << (kShift - 1);
constexpr int kLuma = 1220542, kRedV = 1673527, kGreenV = -852492, kGreenU = -409993, kBlueU = 2116026;

uint8_t Clamped(int value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

// Pillow's weights for its mode L.
uint8_t GrayOf(int red, int green, int blue) {
  return static_cast<uint8_t>((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16);
}

uint8_t* Write(int32_t order, uint8_t red, uint8_t green, uint8_t blue, uint8_t* to) {
  if (order == kAsGray) {
    *to = GrayOf(red, green, blue);
    return to + 1;
  }
  to[0] = order == kAsRgb ? red : blue;
  to[1] = green;
  to[2] = order == kAsRgb ? blue : red;
  return to + kChannels;
}

uint8_t* WriteYuv(int32_t order, int luma, int u, int v, uint8_t* to) {
  const int y = std::max(luma - 16, 0) * kLuma + kHalf;
  u -= 128;
  v -= 128;
  return Write(order, Clamped((y + kRedV * v) >> kShift),
               Clamped((y + kGreenV * v + kGreenU * u) >> kShift), Clamped((y + kBlueU * u) >> kShift),
               to);
}

size_t RowBytes(int32_t format, size_t width) {
  switch (format) {
    case kRgb:
    case kBgr:
      return width * 3;
    case kRgba:
      return width * 4;
    case kYuyv:
      return (width + 1) / 2 * 4;
    default:
      return width;
  }
}

// The last row may end without its gap.
bool CheckPlane(const char* what, size_t bytes, size_t stride, size_t row, size_t rows, Reason* reason) {
  if (stride < row || stride > kMostPixels) {
    return reason->Is("%s has rows of %zu bytes, and its stride is %zu", what, row, stride);
  }
  const uint64_t most = static_cast<uint64_t>(stride) * rows, least = most - stride + row;
  if (bytes >= least && bytes <= most) return true;
  return reason->Is("%s has %zu bytes, and its size and stride need %llu to %llu", what, bytes,
                    static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
}

bool CheckNv12(Picture* picture, Reason* reason) {
  const size_t width = static_cast<size_t>(picture->width), height = static_cast<size_t>(picture->height);
  const size_t row = (width + 1) / 2 * 2, rows = (height + 1) / 2;
  const bool is_tight = picture->stride == 0;
  if (is_tight) picture->stride = width;
  if (picture->chroma_stride == 0) picture->chroma_stride = is_tight ? row : picture->stride;
  if (picture->chroma == nullptr) {
    if (picture->chroma_bytes != 0) return reason->Is("the picture has bytes of chroma, and no chroma");
    const uint64_t luma = static_cast<uint64_t>(picture->stride) * height;
    if (picture->stride > kMostPixels || picture->bytes < luma) {
      return reason->Is("the picture has %zu bytes, and its first plane needs %llu", picture->bytes,
                        static_cast<unsigned long long>(luma));
    }
    picture->chroma = picture->data + luma;
    picture->chroma_bytes = picture->bytes - static_cast<size_t>(luma);
    picture->bytes = static_cast<size_t>(luma);
  }
  return CheckPlane("the picture's first plane", picture->bytes, picture->stride, width, height, reason) &&
         CheckPlane("the picture's chroma", picture->chroma_bytes, picture->chroma_stride, row, rows, reason);
}

}  // namespace

bool CheckSize(int32_t width, int32_t height, Reason* reason) {
  if (width < 1 || height < 1) {
    return reason->Is("the picture has no pixels: its size is %dx%d", width, height);
  }
  if (std::max(width, height) > kLargestSide || int64_t{width} * height > kMostPixels) {
    return reason->Is("the picture is too large: %dx%d; at most %d on a side and %lld pixels", width, height,
                      kLargestSide, static_cast<long long>(kMostPixels));
  }
  return true;
}

bool CheckPicture(Picture* picture, Reason* reason) {
  const int32_t format = picture->format, width = picture->width, height = picture->height;
  if (format < kRgb || format > kYuyv) return reason->Is("the picture has an unknown format: %d", format);
  if (!CheckSize(width, height, reason)) return false;
  if (picture->data == nullptr) return reason->Is("the picture has no data");
  if (format == kNv12) return CheckNv12(picture, reason);
  if (picture->chroma != nullptr || picture->chroma_bytes != 0 || picture->chroma_stride != 0) {
    return reason->Is("the picture has chroma, which only NV12 has");
  }
  const size_t row = RowBytes(format, static_cast<size_t>(width));
  if (picture->stride == 0) picture->stride = row;
  return CheckPlane("the picture", picture->bytes, picture->stride, row, static_cast<size_t>(height), reason);
}

Rows::Rows(const Picture& picture, int32_t order, std::vector<uint8_t>* line)
    : picture_(picture), order_(order) {
  line->resize(static_cast<size_t>(picture.width) * static_cast<size_t>(channels()));
  line_ = line->data();
}

const uint8_t* Rows::At(int32_t row) const {
  const uint8_t* from = picture_.data + static_cast<size_t>(row) * picture_.stride;
  const int32_t format = picture_.format, width = picture_.width;
  const bool as_it_is = (format == kRgb && order_ == kAsRgb) || (format == kBgr && order_ == kAsBgr) ||
                        (format == kGray && order_ == kAsGray);
  if (as_it_is) return from;
  uint8_t* to = line_;
  if (format == kNv12) {
    const uint8_t* chroma = picture_.chroma + static_cast<size_t>(row / 2) * picture_.chroma_stride;
    for (int32_t x = 0; x < width; ++x) {
      to = WriteYuv(order_, from[x], chroma[x / 2 * 2], chroma[x / 2 * 2 + 1], to);
    }
  } else if (format == kYuyv) {
    for (int32_t x = 0; x < width; ++x) {
      const uint8_t* pair = from + static_cast<size_t>(x / 2) * 4;
      to = WriteYuv(order_, pair[x % 2 * 2], pair[1], pair[3], to);
    }
  } else if (format == kGray) {
    for (int32_t x = 0; x < width; ++x) to = std::fill_n(to, kChannels, from[x]);
  } else {
    const int step = format == kRgba ? 4 : 3, red = format == kBgr ? 2 : 0;
    for (int32_t x = 0; x < width; ++x, from += step) {
      to = Write(order_, from[red], from[1], from[2 - red], to);
    }
  }
  return line_;
}

}  // namespace pictures
