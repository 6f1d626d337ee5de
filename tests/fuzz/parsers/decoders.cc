// Files of pictures as strangers send them: their headers, and what the libraries of this machine make of them. Without
// these libraries only the headers are read.
#include "pictures/decoder.h"

#include <cstring>

#include "fuzz.h"

namespace {

constexpr int64_t kMostPixels = 1 << 16;  // so that one input takes no time

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static pictures::Decoder* const decoder = new pictures::Decoder();  // kept, as a model keeps its own
  fuzz::Bytes bytes(data, size);
  const auto contents = bytes.Copy(size);
  pictures::Picture file = {};
  file.data = contents.get();
  file.bytes = size;
  file.format = pictures::FormatOf(file.data, size);
  if (file.format == 0) file.format = pictures::kJpeg + static_cast<int32_t>(size % 2);
  pictures::Reason reason;
  int32_t width = 0, height = 0;
  const bool possible = ReadHeader(file, &width, &height, &reason);
  fuzz::Must(possible == (reason.text[0] == '\0'));
  if (!possible) return 0;
  fuzz::Must(width > 0 && height > 0 && width <= pictures::kLargestSide && height <= pictures::kLargestSide &&
             int64_t{width} * height <= pictures::kMostPixels);
  if (int64_t{width} * height > kMostPixels || !decoder->Open(file.format, &reason)) return 0;
  pictures::Picture pixels = {};
  reason.text[0] = '\0';
  const bool decoded = decoder->Decode(file, &pixels, &reason);
  fuzz::Must(decoded == (reason.text[0] == '\0'));
  if (!decoded) return 0;
  fuzz::Must(pixels.width == width && pixels.height == height && CheckPicture(&pixels, &reason));
  // Every pixel is written, and again the same.
  const std::vector<uint8_t> first(pixels.data, pixels.data + pixels.bytes);
  memset(const_cast<uint8_t*>(pixels.data), first[0] + 1, pixels.bytes);
  fuzz::Must(decoder->Decode(file, &pixels, &reason));
  fuzz::Must(memcmp(first.data(), pixels.data, pixels.bytes) == 0);
  return 0;
}
