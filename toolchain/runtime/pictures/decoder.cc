// See decoder.h: headers, and the memory of the pixels.
#include "decoder.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace pictures {
namespace {

constexpr uint8_t kJpegStart[] = {0xFF, 0xD8, 0xFF};
constexpr uint8_t kPngStart[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
// Markers of a JPEG file.
constexpr uint8_t kTemporary = 0x01, kRestart = 0xD0, kStart = 0xD8, kEnd = 0xD9, kScan = 0xDA;
constexpr uint8_t kFrame = 0xC0, kProgressive = 0xC2, kHuffman = 0xC4, kExtension = 0xC8, kArithmetic = 0xC9,
                  kArithmeticProgressive = 0xCA, kConditioning = 0xCC, kLastFrame = 0xCF;
constexpr size_t kFrameBytes = 8;  // of its length, precision, size and number of components
constexpr size_t kPngHeader = 29;  // bytes to the end of the chunk IHDR's values

uint32_t Big(const uint8_t* from, int bytes) {
  uint32_t value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | from[i];
  return value;
}

bool Begins(const Picture& file, const uint8_t* start, size_t size) {
  return file.bytes >= size && memcmp(file.data, start, size) == 0;
}

bool IsFrame(uint8_t marker) {
  return marker >= kFrame && marker <= kLastFrame && marker != kHuffman && marker != kExtension &&
         marker != kConditioning;
}

bool ReadFrame(uint8_t marker, const uint8_t* frame, int32_t* width, int32_t* height, Reason* reason) {
  const int precision = frame[2], components = frame[7];
  if (marker == kArithmetic || marker == kArithmeticProgressive) {
    return reason->Is("the JPEG file has arithmetic coding: save it with Huffman's");
  }
  if (marker > kProgressive) return reason->Is("the JPEG file is lossless or hierarchical: save it as a usual one");
  if (precision != 8) return reason->Is("the JPEG file has %d bits for a level, and 8 are possible", precision);
  if (components == 4) return reason->Is("the JPEG file has 4 colours (CMYK): save it as RGB");
  if (components != 1 && components != kChannels) {
    return reason->Is("the JPEG file has %d colours, and 1 or 3 are possible", components);
  }
  *height = static_cast<int32_t>(Big(frame + 3, 2));
  *width = static_cast<int32_t>(Big(frame + 5, 2));
  return true;
}

// Finds the frame as libjpeg does: what lies between two segments is skipped.
bool ReadJpegHeader(const Picture& file, int32_t* width, int32_t* height, Reason* reason) {
  const auto ends = [reason] { return reason->Is("the JPEG file ends before its picture begins"); };
  for (size_t at = 2;;) {
    while (at < file.bytes && file.data[at] != 0xFF) ++at;
    while (at < file.bytes && file.data[at] == 0xFF) ++at;
    if (at == file.bytes) return ends();
    const uint8_t marker = file.data[at++];
    if (marker == 0 || marker == kTemporary || (marker >= kRestart && marker < kStart)) continue;
    if (marker == kStart || marker == kEnd || marker == kScan) return reason->Is("the JPEG file has no picture");
    const size_t left = file.bytes - at, length = left < 2 ? 0 : Big(file.data + at, 2);
    if (length < 2 || length > left) return ends();
    if (IsFrame(marker)) {
      return length < kFrameBytes ? ends() : ReadFrame(marker, file.data + at, width, height, reason);
    }
    at += length;
  }
}

bool ReadPngHeader(const Picture& file, int32_t* width, int32_t* height, Reason* reason) {
  if (file.bytes < kPngHeader) return reason->Is("the PNG file ends before its picture begins");
  if (Big(file.data + 8, 4) != 13 || memcmp(file.data + 12, "IHDR", 4) != 0) {
    return reason->Is("the PNG file has no header");
  }
  const int bits = file.data[24];
  if (bits > 8) return reason->Is("the PNG file has %d bits for a level: save it with 8", bits);
  // Larger ones are refused with any number above the limit.
  *width = static_cast<int32_t>(std::min<uint32_t>(Big(file.data + 16, 4), INT32_MAX));
  *height = static_cast<int32_t>(std::min<uint32_t>(Big(file.data + 20, 4), INT32_MAX));
  return true;
}

}  // namespace

int32_t FormatOf(const uint8_t* data, size_t bytes) {
  const Picture file = {0, 0, 0, data, bytes, 0, nullptr, 0, 0};
  if (Begins(file, kJpegStart, sizeof kJpegStart)) return kJpeg;
  return Begins(file, kPngStart, sizeof kPngStart) ? int32_t{kPng} : 0;
}

bool ReadHeader(const Picture& file, int32_t* width, int32_t* height, Reason* reason) {
  const char* const name = file.format == kJpeg ? "JPEG" : "PNG";
  if (file.width != 0 || file.height != 0 || file.stride != 0 || file.chroma != nullptr || file.chroma_bytes != 0 ||
      file.chroma_stride != 0) {
    return reason->Is("a %s file says its size itself: leave width, height, stride and chroma 0", name);
  }
  if (file.data == nullptr || file.bytes == 0) return reason->Is("the %s file is empty", name);
  const int32_t format = FormatOf(file.data, file.bytes);
  if (format != file.format) {
    return reason->Is("the picture is %s, not a %s file",
                      format == kJpeg ? "a JPEG file" : format == kPng ? "a PNG file" : "something else", name);
  }
  const auto read = format == kJpeg ? ReadJpegHeader : ReadPngHeader;
  return read(file, width, height, reason) && CheckSize(*width, *height, reason);
}

SharedLibrary::~SharedLibrary() { Close(); }

bool SharedLibrary::Open(const char* first, const char* second) {
  handle_ = dlopen(first, RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) handle_ = dlopen(second, RTLD_NOW | RTLD_LOCAL);
  return handle_ != nullptr;
}

void SharedLibrary::Close() {
  if (handle_ != nullptr) dlclose(handle_);
  handle_ = nullptr;
}

void* SharedLibrary::Symbol(const char* name) const { return dlsym(handle_, name); }

Decoder::~Decoder() { free(memory_); }

bool Decoder::Open(int32_t format, Reason* reason) {
  return format == kJpeg ? jpeg_.Open(reason) : png_.Open(reason);
}

bool Decoder::Decode(const Picture& file, Picture* pixels, Reason* reason) {
  int32_t width = 0, height = 0;
  if (!ReadHeader(file, &width, &height, reason)) return false;
  const size_t needed = static_cast<size_t>(width) * static_cast<size_t>(height) * kChannels;
  if (needed > size_) {
    free(memory_);  // of another picture, whose pixels nobody needs
    memory_ = static_cast<uint8_t*>(malloc(needed));
    size_ = memory_ == nullptr ? 0 : needed;
    if (memory_ == nullptr) return reason->Is("the picture of %dx%d needs %zu bytes of memory", width, height, needed);
  }
  *pixels = {kRgb, width, height, memory_, needed, 0, nullptr, 0, 0};
  return file.format == kJpeg ? jpeg_.Decode(file, width, height, memory_, reason)
                              : png_.Decode(file, width, height, memory_, reason);
}

}  // namespace pictures
