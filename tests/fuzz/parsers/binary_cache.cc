// A file of compiled OpenCL kernels: what is found in it has to be what was kept.
#include "opencl/binary_cache.h"

#include <filesystem>

#include "fuzz.h"

namespace {

// The one file of a cache that has kept something.
std::string FileOf(const opencl::BinaryCache& cache, const std::string& folder) {
  cache.Keep("key", "binary");
  return std::filesystem::directory_iterator(folder)->path();
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string folder = fuzz::Folder();
  static const opencl::BinaryCache cache(folder);
  static const std::string path = FileOf(cache, folder);
  fuzz::Write(path, data, size);
  const auto found = cache.Find("key");
  if (!found) return 0;
  cache.Keep("key", *found);  // the same bytes again
  fuzz::Must(std::filesystem::file_size(path) == size);
  fuzz::Must(cache.Find("key") == found);
  return 0;
}
