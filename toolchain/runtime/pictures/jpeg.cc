// JPEG files, by libturbojpeg. Its accurate transform and its usual upsampling give the same pixels on all processors.
#include <cstring>

#include "decoder.h"

namespace pictures {
namespace {

// Of turbojpeg.h.
constexpr int kPixelsRgb = 0, kAccurate = 4096, kLimitScans = 32768;
constexpr int kWarning = 0;

// Many cameras send some bytes more than the picture has, which is complete then: libjpeg keeps the text of the first
// warning, and after the end of the picture there is no other one.
bool IsHarmless(const char* warning) { return strstr(warning, "extraneous bytes before marker 0xd9") != nullptr; }

}  // namespace

Jpeg::~Jpeg() {
  if (handle_ != nullptr) destroy_(handle_);
}

bool Jpeg::Open(Reason* reason) {
  if (handle_ != nullptr) return true;
  const bool opened = library_.Open("libturbojpeg.so.0", "libturbojpeg.so") &&
                      library_.Find("tjInitDecompress", &start_) && library_.Find("tjDecompress2", &decompress_) &&
                      library_.Find("tjGetErrorStr2", &error_) && library_.Find("tjGetErrorCode", &error_code_) &&
                      library_.Find("tjDestroy", &destroy_);
  if (opened) handle_ = start_();
  if (handle_ != nullptr) return true;
  library_.Close();
  return reason->Is("no libturbojpeg.so.0 here, which decodes JPEG: install the package libturbojpeg0 (Ubuntu: "
                    "libturbojpeg), or pass raw pixels, which need no library");
}

bool Jpeg::Decode(const Picture& file, int32_t width, int32_t height, uint8_t* pixels, Reason* reason) {
  const int code = decompress_(handle_, file.data, static_cast<unsigned long>(file.bytes), pixels, width,
                               width * kChannels, height, kPixelsRgb, kAccurate | kLimitScans);
  if (code == 0) return true;
  const char* const text = error_(handle_);
  if (error_code_(handle_) == kWarning && IsHarmless(text)) return true;
  return reason->Is("the JPEG file is damaged: %s", text);
}

}  // namespace pictures
