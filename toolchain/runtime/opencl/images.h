// Buffers that a kernel reads as images, through the texture unit, which has a path and a cache of its
// own. The compiler says so in a line of the kernel's source:
//   // edge-image: ARGUMENT_INDEX float|half WIDTH_IN_TEXELS HEIGHT
// and has two forms of what reads it: EDGE_IMAGES is defined where they are images. A device that has no
// such images gets the other one, as does everybody with EDGE_OPENCL_IMAGES=0.
#ifndef OPENCL_IMAGES_H_
#define OPENCL_IMAGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "cl.h"
#include "library.h"

namespace opencl {

// How a pointer argument is read: as so many rows of texels, of four numbers each.
struct ImageArgument {
  size_t argument;
  bool is_half;
  size_t width;
  size_t height;
};

// The lines at the start of the source of a kernel whose arguments have so many bytes. Throws
// tvm::ffi::Error where one is none, or is about what is no pointer.
std::vector<ImageArgument> ImageArguments(const std::string& source,
                                          const std::vector<size_t>& sizes);

// What a device can do with images; zeros where it cannot.
struct ImageLimits {
  bool of_buffers = false;  // cl_khr_image2d_from_buffer
  size_t width = 0;         // most texels of a row, and most rows
  size_t height = 0;
  uint32_t pitch = 0;  // texels that a row's length in memory is a multiple of
};

// Whether a device has all of these images.
bool Fit(const Library& cl, const ImageLimits& limits, const std::vector<ImageArgument>& wanted);

// The images of a context's buffers, each made when it is first needed and kept for as long as its
// buffer. Not for several threads at once.
class Images {
 public:
  // A view of a buffer, of a shape that fits. Throws tvm::ffi::Error where the driver makes none.
  cl_mem Of(const Library& cl, cl_context context, cl_mem buffer, const ImageArgument& wanted);

  // Releases those of a buffer, which goes: the next one may have its address.
  void Drop(const Library& cl, cl_mem buffer);

 private:
  using Shape = std::tuple<bool, size_t, size_t>;
  std::map<cl_mem, std::map<Shape, cl_mem>> made_;
};

}  // namespace opencl

#endif  // OPENCL_IMAGES_H_
