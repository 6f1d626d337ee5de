// See xrt.h.
#include "xrt.h"

#include <sys/mman.h>

#include <algorithm>

#include "fault.h"
#include "page_ranges.h"
#include "shared_library.h"

namespace vta {
namespace {

constexpr unsigned kFirstDevice = 0;
constexpr int kQuiet = 0;
constexpr uint32_t kNoObject = 0xffffffff;
// Bank 0, in the CPU's caches: without this flag the kernel maps it past them, where results of an
// FPGA that writes into them would be missing.
constexpr unsigned kCacheable = 1u << 24;
constexpr int kToDevice = 0, kFromDevice = 1;
// One page comes from elsewhere than the pool, at addresses that the FPGA may not reach.
constexpr size_t kLeastBytes = 2 * kPage;

}  // namespace

XrtLibrary::XrtLibrary(const std::string& name) {
  const SharedLibrary library(name);
  library.Find("xclProbe", &probe_);
  library.Find("xclOpen", &open_);
  library.Find("xclClose", &close_);
  library.Find("xclAllocBO", &alloc_);
  library.Find("xclFreeBO", &free_);
  library.Find("xclMapBO", &map_);
  library.Find("xclUnmapBO", &unmap_);
  library.Find("xclGetBOProperties", &properties_);
  library.Find("xclSyncBO", &sync_);
  // First, as opening what is not there prints an error.
  if (probe_() == 0) Fail(name + " sees no device: is the kernel's driver zocl loaded?");
  device_ = open_(kFirstDevice, nullptr, kQuiet);
  if (device_ == nullptr) Fail(name + " cannot open its device: has this user the right to?");
}

XrtLibrary::~XrtLibrary() {
  // What is left is what an FPGA that hangs may still write to: it is not given back.
  if (objects_.empty()) close_(device_);
}

DmaBuffer XrtLibrary::Allocate(size_t bytes) {
  const size_t size = std::max<size_t>(kLeastBytes, static_cast<size_t>(ToPages(bytes)));
  const uint32_t object = size >= bytes ? alloc_(device_, size, 0, kCacheable) : kNoObject;
  if (object == kNoObject) {
    Fail("XRT has no contiguous memory for a buffer of " + std::to_string(bytes) +
         " bytes: end other programs that use the FPGA, or give the kernel more (cma=128M)");
  }
  void* data = map_(device_, object, true);
  Properties properties = {};
  const bool mapped = data != nullptr && data != MAP_FAILED;
  const bool told = mapped && properties_(device_, object, &properties) == 0;
  // A 0 or all ones is what it says of objects that it knows no address of.
  if (!told || properties.physical == 0 || properties.physical == UINT64_MAX) {
    if (mapped) unmap_(device_, object, data);
    free_(device_, object);
    Fail(mapped ? "XRT does not tell where a buffer is" : "XRT cannot map a buffer");
  }
  objects_.push_back({object, static_cast<uint8_t*>(data)});
  return {objects_.back().data, properties.physical, size};
}

void XrtLibrary::Free(const DmaBuffer& buffer) {
  const uint32_t object = HandleOf(buffer);
  unmap_(device_, object, buffer.data);
  free_(device_, object);
  const auto same = [&](const Object& one) { return one.handle == object; };
  objects_.erase(std::remove_if(objects_.begin(), objects_.end(), same), objects_.end());
}

uint32_t XrtLibrary::HandleOf(const DmaBuffer& buffer) const {
  for (const Object& one : objects_) {
    if (one.data == buffer.data) return one.handle;
  }
  Fail("a buffer that does not belong to XRT");
}

void XrtLibrary::Sync(const DmaBuffer& buffer, size_t offset, size_t bytes, int direction) const {
  const int status = sync_(device_, HandleOf(buffer), direction, bytes, offset);
  if (status == 0) return;
  Fail("XRT cannot synchronise a buffer with the device (" + std::to_string(status) + ")");
}

void XrtLibrary::Flush(const DmaBuffer& buffer, size_t offset, size_t bytes) {
  Sync(buffer, offset, bytes, kToDevice);
}

void XrtLibrary::Invalidate(const DmaBuffer& buffer, size_t offset, size_t bytes) {
  Sync(buffer, offset, bytes, kFromDevice);
}

}  // namespace vta
