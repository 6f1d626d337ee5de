// See images.h.
#include "images.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <sstream>

#include "status.h"

namespace opencl {
namespace {

constexpr char kImageMark[] = "// edge-image: ";
constexpr size_t kMostTexels = 1 << 30;

bool IsPointer(size_t argument, const std::vector<size_t>& sizes) {
  return argument < sizes.size() && sizes[argument] == sizeof(cl_mem);
}

ImageArgument Parsed(const std::string& line, const std::vector<size_t>& sizes) {
  std::istringstream words(line.substr(sizeof(kImageMark) - 1));
  ImageArgument found{};
  std::string type, rest;
  const bool whole = static_cast<bool>(words >> found.argument >> type >> found.width >> found.height);
  found.is_half = type == "half";
  if (!whole || words >> rest || (!found.is_half && type != "float") || !IsPointer(found.argument, sizes) ||
      found.width == 0 || found.height == 0 || found.width > kMostTexels || found.height > kMostTexels) {
    TVM_FFI_THROW(ValueError) << "OpenCL: a kernel's source has an invalid image line: " << line;
  }
  return found;
}

bool Fits(const ImageLimits& limits, const ImageArgument& wanted) {
  const bool whole_rows = limits.pitch <= 1 || wanted.width % limits.pitch == 0;
  return whole_rows && wanted.width <= limits.width && wanted.height <= limits.height;
}

cl_mem Made(const Library& cl, cl_context context, cl_mem buffer, const ImageArgument& wanted) {
  const cl_image_format format{CL_RGBA, wanted.is_half ? CL_HALF_FLOAT : CL_FLOAT};
  cl_image_desc about{};
  about.image_type = CL_MEM_OBJECT_IMAGE2D;
  about.image_width = wanted.width;
  about.image_height = wanted.height;
  about.image_row_pitch = wanted.width * (wanted.is_half ? 8 : 16);
  about.mem_object = buffer;
  cl_int status = CL_SUCCESS;
  const cl_mem made = cl.CreateImage(context, CL_MEM_READ_ONLY, &format, &about, nullptr, &status);
  Check(status, "making an image of a buffer (EDGE_OPENCL_IMAGES=0 does without)");
  return made;
}

}  // namespace

std::vector<ImageArgument> ImageArguments(const std::string& source,
                                          const std::vector<size_t>& sizes) {
  std::vector<ImageArgument> found;
  for (size_t start = source.find(kImageMark); start != std::string::npos;
       start = source.find(kImageMark, start + 1)) {
    found.push_back(Parsed(source.substr(start, source.find('\n', start) - start), sizes));
  }
  return found;
}

bool Fit(const Library& cl, const ImageLimits& limits, const std::vector<ImageArgument>& wanted) {
  const bool has_views = cl.CreateImage != nullptr && limits.of_buffers;
  const auto fits = [&limits](const ImageArgument& one) { return Fits(limits, one); };
  return has_views && std::all_of(wanted.begin(), wanted.end(), fits);
}

cl_mem Images::Of(const Library& cl, cl_context context, cl_mem buffer, const ImageArgument& wanted) {
  cl_mem& image = made_[buffer][{wanted.is_half, wanted.width, wanted.height}];
  if (image == nullptr) image = Made(cl, context, buffer, wanted);
  return image;
}

void Images::Drop(const Library& cl, cl_mem buffer) {
  const auto found = made_.find(buffer);
  if (found == made_.end()) return;
  for (const auto& [shape, image] : found->second) {
    if (image != nullptr) cl.ReleaseMemObject(image);
  }
  made_.erase(found);
}

}  // namespace opencl
