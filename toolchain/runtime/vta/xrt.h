// Memory of XRT, which PYNQ from 2.7 on allocates by.
#ifndef VTA_XRT_H_
#define VTA_XRT_H_

#include <string>
#include <vector>

#include "buffers.h"

namespace vta {

// The functions of its library's interface in C, `xrt.h`. On a Zynq they are calls of the kernel's
// driver zocl, which takes such memory from the kernel's pool for contiguous memory. That needs no
// xclbin: zocl takes any memory bank that no xclbin has told of for that pool.
class XrtLibrary final : public DmaMemory {
 public:
  // Throws Fault where the library cannot be loaded, lacks a function, or sees no device.
  explicit XrtLibrary(const std::string& name);
  ~XrtLibrary() override;

  std::string Name() const override { return "XRT"; }
  DmaBuffer Allocate(size_t bytes) override;
  void Free(const DmaBuffer& buffer) override;
  bool Coherent(const DmaBuffer&) const override { return false; }
  void Flush(const DmaBuffer& buffer, size_t offset, size_t bytes) override;
  void Invalidate(const DmaBuffer& buffer, size_t offset, size_t bytes) override;

 private:
  // As in `xrt.h`.
  struct Properties {
    uint32_t handle;
    uint32_t flags;
    uint64_t size;
    uint64_t physical;
    int reserved;
  };

  struct Object {
    uint32_t handle = 0;
    uint8_t* data = nullptr;
  };

  uint32_t HandleOf(const DmaBuffer& buffer) const;
  void Sync(const DmaBuffer& buffer, size_t offset, size_t bytes, int direction) const;

  unsigned (*probe_)() = nullptr;
  void* (*open_)(unsigned index, const char* log, int level) = nullptr;
  void (*close_)(void* device) = nullptr;
  uint32_t (*alloc_)(void* device, size_t bytes, int unused, unsigned flags) = nullptr;
  void (*free_)(void* device, uint32_t object) = nullptr;
  void* (*map_)(void* device, uint32_t object, bool write) = nullptr;
  int (*unmap_)(void* device, uint32_t object, void* data) = nullptr;
  int (*properties_)(void* device, uint32_t object, Properties* properties) = nullptr;
  int (*sync_)(void* device, uint32_t object, int direction, size_t bytes, size_t offset) = nullptr;

  void* device_ = nullptr;
  std::vector<Object> objects_;
};

}  // namespace vta

#endif  // VTA_XRT_H_
