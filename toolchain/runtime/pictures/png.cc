// PNG files, by libpng. Its errors end in a jump, so nothing between here and there has a destructor.
#include <atomic>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "decoder.h"

namespace pictures {
namespace {

constexpr char kVersion[] = "1.6.0";  // of which the first two numbers are compared
// No chunk but those that pixels need is read: neither texts, which may be compressed, nor gamma and colour profiles.
constexpr int kNever = 1, kAllOthers = -1;

// png_get_error_ptr, for the functions that libpng calls: the same for all objects.
std::atomic<void* (*)(void*)> given_to{nullptr};

}  // namespace

struct Png::Reading {
  Struct png;
  Info info;
  const uint8_t* next;
  size_t left;
  uint8_t* pixels;
  size_t height, stride;
  char text[96];
  jmp_buf end;
};

bool Png::Fill() {
  void* (*get_error)(void*) = nullptr;
  const bool all =
      library_.Find("png_create_read_struct", &create_) && library_.Find("png_create_info_struct", &create_info_) &&
      library_.Find("png_destroy_read_struct", &destroy_) && library_.Find("png_set_read_fn", &set_read_) &&
      library_.Find("png_get_error_ptr", &get_error) && library_.Find("png_set_user_limits", &set_limits_) &&
      library_.Find("png_set_keep_unknown_chunks", &keep_chunks_) && library_.Find("png_read_info", &read_info_) &&
      library_.Find("png_set_expand", &expand_) && library_.Find("png_set_strip_alpha", &strip_alpha_) &&
      library_.Find("png_set_gray_to_rgb", &gray_to_rgb_) &&
      library_.Find("png_set_interlace_handling", &interlaced_) &&
      library_.Find("png_read_update_info", &update_info_) && library_.Find("png_get_rowbytes", &row_bytes_) &&
      library_.Find("png_get_image_height", &height_) && library_.Find("png_read_row", &read_row_) &&
      library_.Find("png_read_end", &read_end_);
  given_to = get_error;
  return all;
}

bool Png::Open(Reason* reason) {
  if (library_.is_open()) return true;
  if (library_.Open("libpng16.so.16", "libpng16.so") && Fill()) return true;
  library_.Close();
  return reason->Is("no libpng16.so.16 here, which decodes PNG: install the package libpng16-16 (newer systems: "
                    "libpng16-16t64), or pass raw pixels, which need no library");
}

void Png::OnError(Struct png, const char* text) {
  Reading* reading = static_cast<Reading*>(given_to.load()(png));
  snprintf(reading->text, sizeof reading->text, "%s", text);
  longjmp(reading->end, 1);
}

void Png::OnRead(Struct png, unsigned char* to, size_t count) {
  Reading* reading = static_cast<Reading*>(given_to.load()(png));
  if (count > reading->left) OnError(png, "it ends too early");
  memcpy(to, reading->next, count);
  reading->next += count;
  reading->left -= count;
}

// As Pillow converts to RGB: palettes and few bits become levels of 8 bits, and alpha is left out.
void Png::ReadRows(Reading* reading) const {
  const Struct png = reading->png;
  set_read_(png, nullptr, &OnRead);
  set_limits_(png, kLargestSide, kLargestSide);
  keep_chunks_(png, kNever, nullptr, kAllOthers);
  read_info_(png, reading->info);
  expand_(png);
  strip_alpha_(png);
  gray_to_rgb_(png);
  const int passes = interlaced_(png);
  update_info_(png, reading->info);
  if (row_bytes_(png, reading->info) != reading->stride || height_(png, reading->info) != reading->height) {
    OnError(png, "its header says another size");
  }
  for (int pass = 0; pass < passes; ++pass) {
    for (size_t row = 0; row < reading->height; ++row) {
      read_row_(png, reading->pixels + row * reading->stride, nullptr);
    }
  }
  read_end_(png, nullptr);
}

bool Png::Decode(const Picture& file, int32_t width, int32_t height, uint8_t* pixels, Reason* reason) {
  Reading reading = {};
  reading.next = file.data;
  reading.left = file.bytes;
  reading.pixels = pixels;
  reading.height = static_cast<size_t>(height);
  reading.stride = static_cast<size_t>(width) * kChannels;
  Reading* volatile kept = &reading;
  if (setjmp(reading.end) == 0) {
    reading.png = create_(kVersion, &reading, &OnError, &OnWarning);
    if (reading.png != nullptr) reading.info = create_info_(reading.png);
    if (reading.info != nullptr) ReadRows(&reading);
    if (reading.info == nullptr) snprintf(reading.text, sizeof reading.text, "out of memory");
  }
  if (kept->png != nullptr) destroy_(&kept->png, &kept->info, nullptr);
  return kept->text[0] == '\0' || reason->Is("the PNG file is damaged: %s", kept->text);
}

}  // namespace pictures
