// Decodes JPEG and PNG files with the device's own libraries, libturbojpeg and libpng, which its distribution
// repairs. Headers are read here first: nothing is allocated, and no library sees the file, before its size and its
// kind are known to be possible.
#ifndef PICTURES_DECODER_H_
#define PICTURES_DECODER_H_

#include <cstddef>
#include <cstdint>

#include "pictures.h"

namespace pictures {

// The format of a file by how it begins, or 0.
int32_t FormatOf(const uint8_t* data, size_t bytes);

// Reads the size of a file's picture, and refuses what is not decoded, by name.
bool ReadHeader(const Picture& file, int32_t* width, int32_t* height, Reason* reason);

// A library of the device.
class SharedLibrary {
 public:
  SharedLibrary() = default;
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;
  ~SharedLibrary();

  // Opens the first one of these names that there is.
  bool Open(const char* first, const char* second);
  bool is_open() const { return handle_ != nullptr; }
  void Close();

  // Finds a function; returns whether there is one.
  template <typename Function>
  bool Find(const char* name, Function* function) const {
    *function = reinterpret_cast<Function>(Symbol(name));
    return *function != nullptr;
  }

 private:
  void* Symbol(const char* name) const;

  void* handle_ = nullptr;
};

// The functions of libturbojpeg, as its versions 2 and 3 have them.
class Jpeg {
 public:
  ~Jpeg();
  bool Open(Reason* reason);
  bool Decode(const Picture& file, int32_t width, int32_t height, uint8_t* pixels, Reason* reason);

 private:
  SharedLibrary library_;
  void* handle_ = nullptr;
  void* (*start_)() = nullptr;
  int (*decompress_)(void*, const unsigned char*, unsigned long, unsigned char*, int, int, int, int, int) = nullptr;
  char* (*error_)(void*) = nullptr;
  int (*error_code_)(void*) = nullptr;
  int (*destroy_)(void*) = nullptr;
};

// The functions of libpng 1.6.
class Png {
 public:
  bool Open(Reason* reason);
  bool Decode(const Picture& file, int32_t width, int32_t height, uint8_t* pixels, Reason* reason);

 private:
  using Struct = void*;  // png_structp
  using Info = void*;    // png_infop
  struct Reading;

  bool Fill();
  void ReadRows(Reading* reading) const;
  static void OnError(Struct png, const char* text);
  static void OnWarning(Struct, const char*) {}
  static void OnRead(Struct png, unsigned char* to, size_t count);

  SharedLibrary library_;
  Struct (*create_)(const char*, void*, void (*)(Struct, const char*), void (*)(Struct, const char*)) = nullptr;
  Info (*create_info_)(Struct) = nullptr;
  void (*destroy_)(Struct*, Info*, Info*) = nullptr;
  void (*set_read_)(Struct, void*, void (*)(Struct, unsigned char*, size_t)) = nullptr;
  void (*set_limits_)(Struct, uint32_t, uint32_t) = nullptr;
  void (*keep_chunks_)(Struct, int, const unsigned char*, int) = nullptr;
  void (*read_info_)(Struct, Info) = nullptr;
  void (*expand_)(Struct) = nullptr;
  void (*strip_alpha_)(Struct) = nullptr;
  void (*gray_to_rgb_)(Struct) = nullptr;
  int (*interlaced_)(Struct) = nullptr;
  void (*update_info_)(Struct, Info) = nullptr;
  size_t (*row_bytes_)(Struct, Info) = nullptr;
  uint32_t (*height_)(Struct, Info) = nullptr;
  void (*read_row_)(Struct, unsigned char*, unsigned char*) = nullptr;
  void (*read_end_)(Struct, Info) = nullptr;
};

// Not for use by two threads at the same time. Its memory grows to the largest picture, and is kept.
class Decoder {
 public:
  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder();

  // Opens the library that decodes a format; the reason names the package where there is none.
  bool Open(int32_t format, Reason* reason);

  // Decodes a file, whose format is open, to RGB pixels in this object's memory, which the next call changes.
  bool Decode(const Picture& file, Picture* pixels, Reason* reason);

 private:
  Jpeg jpeg_;
  Png png_;
  uint8_t* memory_ = nullptr;
  size_t size_ = 0;
};

}  // namespace pictures

#endif  // PICTURES_DECODER_H_
