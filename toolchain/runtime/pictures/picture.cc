// Pictures as cameras deliver them: checks, and rows of RGB, BGR or gray pixels.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "pictures.h"

namespace pictures {
namespace {

// BT.601 with levels from 16 to 235, as OpenCV converts it: coefficients with 20 binary digits.
constexpr int kShift = 20, kHalf = 1 << (kShift - 1);
constexpr int kLuma = 1220542, kRedV = 1673527, kGreenV = -852492, kGreenU = -409993, kBlueU = 2116026;

// What a level of Y, U or V adds to a colour, and the levels of sums: a third of the time of computing them.
constexpr int kLowest = -260, kSums = 800;

struct YuvTables {
  int32_t luma[kLevels], red_v[kLevels], green_v[kLevels], green_u[kLevels], blue_u[kLevels];
  uint8_t level[kSums];  // of sums from kLowest
};

constexpr YuvTables MakeTables() {
  YuvTables tables = {};
  for (int i = 0; i < kLevels; ++i) {
    tables.luma[i] = (i > 16 ? i - 16 : 0) * kLuma + kHalf;
    tables.red_v[i] = (i - 128) * kRedV;
    tables.green_v[i] = (i - 128) * kGreenV;
    tables.green_u[i] = (i - 128) * kGreenU;
    tables.blue_u[i] = (i - 128) * kBlueU;
  }
  for (int i = 0; i < kSums; ++i) {
    const int sum = i + kLowest;
    tables.level[i] = static_cast<uint8_t>(sum < 0 ? 0 : sum > 255 ? 255 : sum);
  }
  return tables;
}

constexpr YuvTables kTables = MakeTables();

uint8_t LevelOf(int32_t sum) { return kTables.level[(sum >> kShift) - kLowest]; }

// Pillow's weights for its mode L.
uint8_t GrayOf(int red, int green, int blue) {
  return static_cast<uint8_t>((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16);
}

template <int32_t order>
uint8_t* Write(uint8_t red, uint8_t green, uint8_t blue, uint8_t* to) {
  if constexpr (order == kAsGray) {
    *to = GrayOf(red, green, blue);
    return to + 1;
  } else {
    to[0] = order == kAsRgb ? red : blue;
    to[1] = green;
    to[2] = order == kAsRgb ? blue : red;
    return to + kChannels;
  }
}

// A row of pixels, of which two have one U and one V; `step` and `next` are the bytes from one Y, and from one pair, to
// the next.
template <int32_t order>
void WriteYuv(int32_t width, const uint8_t* luma, int step, const uint8_t* u, const uint8_t* v, int next, uint8_t* to) {
  for (int32_t x = 0; x < width; x += 2, u += next, v += next) {
    const int32_t red = kTables.red_v[*v], blue = kTables.blue_u[*u];
    const int32_t green = kTables.green_v[*v] + kTables.green_u[*u];
    for (int32_t left = std::min(width - x, 2); left > 0; --left, luma += step) {
      const int32_t y = kTables.luma[*luma];
      to = Write<order>(LevelOf(y + red), LevelOf(y + green), LevelOf(y + blue), to);
    }
  }
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

bool Crop(Picture picture, const Object& box, Picture* crop, Area* area, Reason* reason) {
  if (IsFile(picture.format)) return reason->Is("a file has no pixels to crop: decode it first");
  if (!CheckPicture(&picture, reason)) return false;
  const auto within = [](float value, int32_t size) {  // also of no number
    return value > 0 ? static_cast<int32_t>(std::min(value, static_cast<float>(size))) : 0;
  };
  const bool has_pairs = picture.format == kNv12 || picture.format == kYuyv;
  int32_t left = within(std::floor(box.left), picture.width), top = within(std::floor(box.top), picture.height);
  if (has_pairs) left -= left % 2;
  if (picture.format == kNv12) top -= top % 2;
  const int32_t width = within(std::ceil(box.right), picture.width) - left;
  const int32_t height = within(std::ceil(box.bottom), picture.height) - top;
  if (width < 1 || height < 1) return reason->Is("the box has no pixel of the picture");
  *area = {left, top, width, height};
  const auto cut = [](const uint8_t* data, size_t stride, size_t row, size_t before, size_t rows) {
    return std::pair(data + row * stride + before, (rows - 1) * stride);
  };
  const size_t x = static_cast<size_t>(left), y = static_cast<size_t>(top), w = static_cast<size_t>(width);
  const size_t h = static_cast<size_t>(height), before = RowBytes(picture.format, x);
  *crop = picture;
  crop->width = width;
  crop->height = height;
  std::tie(crop->data, crop->bytes) = cut(picture.data, picture.stride, y, before, h);
  crop->bytes += RowBytes(picture.format, w);
  if (picture.format != kNv12) return true;
  std::tie(crop->chroma, crop->chroma_bytes) = cut(picture.chroma, picture.chroma_stride, y / 2, x, (h + 1) / 2);
  crop->chroma_bytes += (w + 1) / 2 * 2;
  return true;
}

Rows::Rows(const Picture& picture, int32_t order, std::vector<uint8_t>* line)
    : picture_(picture), order_(order) {
  line->resize(static_cast<size_t>(picture.width) * static_cast<size_t>(channels()));
  line_ = line->data();
}

template <int32_t order>
void Rows::Convert(int32_t row, const uint8_t* from) const {
  const int32_t format = picture_.format, width = picture_.width;
  uint8_t* to = line_;
  if (format == kNv12) {
    const uint8_t* chroma = picture_.chroma + static_cast<size_t>(row / 2) * picture_.chroma_stride;
    WriteYuv<order>(width, from, 1, chroma, chroma + 1, 2, to);
  } else if (format == kYuyv) {
    WriteYuv<order>(width, from, 2, from + 1, from + 3, 4, to);
  } else if (format == kGray) {
    for (int32_t x = 0; x < width; ++x) to = std::fill_n(to, kChannels, from[x]);
  } else {
    const int step = format == kRgba ? 4 : 3, red = format == kBgr ? 2 : 0;
    for (int32_t x = 0; x < width; ++x, from += step) to = Write<order>(from[red], from[1], from[2 - red], to);
  }
}

const uint8_t* Rows::At(int32_t row) const {
  const uint8_t* from = picture_.data + static_cast<size_t>(row) * picture_.stride;
  const int32_t format = picture_.format;
  const bool as_it_is = (format == kRgb && order_ == kAsRgb) || (format == kBgr && order_ == kAsBgr) ||
                        (format == kGray && order_ == kAsGray);
  if (as_it_is) return from;
  if (order_ == kAsGray) {
    Convert<kAsGray>(row, from);
  } else if (order_ == kAsBgr) {
    Convert<kAsBgr>(row, from);
  } else {
    Convert<kAsRgb>(row, from);
  }
  return line_;
}

}  // namespace pictures
