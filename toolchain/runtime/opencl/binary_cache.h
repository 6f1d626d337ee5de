// Programs as the driver compiled them, kept on the device: the second start of a model compiles
// nothing.
#ifndef OPENCL_BINARY_CACHE_H_
#define OPENCL_BINARY_CACHE_H_

#include <optional>
#include <string>
#include <utility>

namespace opencl {

// A folder of binaries. A file holds all that its binary was made from, so that no other device,
// driver or source ever gets it; files that are damaged count as not there. Nothing here throws: a
// cache that cannot be read or written costs time, not results.
class BinaryCache {
 public:
  // The folder that EDGE_OPENCL_CACHE names, or edge-toolchain/opencl in the user's cache; without a
  // home, and with an empty EDGE_OPENCL_CACHE, which is the board server's default, nothing is kept.
  static BinaryCache Default();

  // An empty `folder` keeps nothing.
  explicit BinaryCache(std::string folder) : folder_(std::move(folder)) {}

  // Whether anything is kept at all.
  bool Keeps() const { return !folder_.empty(); }

  // `key` is everything that the binary depends on.
  std::optional<std::string> Find(const std::string& key) const;

  void Keep(const std::string& key, const std::string& binary) const;

 private:
  std::string PathOf(const std::string& key) const;
  void DropOldest() const;

  std::string folder_;
};

}  // namespace opencl

#endif  // OPENCL_BINARY_CACHE_H_
