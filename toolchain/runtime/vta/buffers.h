// Memory that the FPGA can address: it knows physical addresses alone, and no pages.
#ifndef VTA_BUFFERS_H_
#define VTA_BUFFERS_H_

#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "page_ranges.h"
#include "system.h"

namespace vta {

// See Device. All functions throw Fault.
class DmaMemory {
 public:
  virtual ~DmaMemory() = default;
  virtual DmaBuffer Allocate(size_t bytes) = 0;
  virtual void Free(const DmaBuffer& buffer) = 0;
  // Whether the kernel says that devices see the CPU's caches there (dma-coherent), so that neither
  // of the following does anything.
  virtual bool Coherent(const DmaBuffer& buffer) const = 0;
  virtual void Flush(const DmaBuffer& buffer, size_t offset, size_t bytes) = 0;
  virtual void Invalidate(const DmaBuffer& buffer, size_t offset, size_t bytes) = 0;
};

// The library of PYNQ up to 2.6.
class CmaLibrary final : public DmaMemory {
 public:
  // Throws Fault where the library cannot be loaded, or lacks a function.
  explicit CmaLibrary(const std::string& name);

  DmaBuffer Allocate(size_t bytes) override;
  void Free(const DmaBuffer& buffer) override;
  bool Coherent(const DmaBuffer&) const override { return false; }
  void Flush(const DmaBuffer& buffer, size_t offset, size_t bytes) override;
  void Invalidate(const DmaBuffer& buffer, size_t offset, size_t bytes) override;

 private:
  void* (*alloc_)(uint32_t bytes, uint32_t cached) = nullptr;
  unsigned long (*physical_)(void* data) = nullptr;
  void (*free_)(void* data) = nullptr;
  void (*flush_)(void* data, unsigned int physical, int bytes) = nullptr;
  void (*invalidate_)(void* data, unsigned int physical, int bytes) = nullptr;
};

// The kernel module u-dma-buf: each of its devices has a fixed size, and buffers are parts of them.
class UdmabufDevices final : public DmaMemory {
 public:
  explicit UdmabufDevices(const System& system);
  ~UdmabufDevices() override;

  bool Exist() const { return !devices_.empty(); }

  DmaBuffer Allocate(size_t bytes) override;
  void Free(const DmaBuffer& buffer) override;
  bool Coherent(const DmaBuffer& buffer) const override { return EntryOf(buffer).coherent; }
  void Flush(const DmaBuffer& buffer, size_t offset, size_t bytes) override;
  void Invalidate(const DmaBuffer& buffer, size_t offset, size_t bytes) override;

 private:
  struct Entry {
    std::string name;
    std::string folder;  // in sysfs
    uint64_t physical = 0;
    size_t size = 0;
    bool coherent = false;
    uint8_t* data = nullptr;  // where it is mapped while any of it is in use
    PageRanges taken;

    bool Has(const DmaBuffer& buffer) const {
      return data != nullptr && buffer.data >= data && buffer.data < data + size;
    }
  };

  void Find(const std::string& folder);
  static void CheckCached(const Entry& entry);
  Entry* Smallest(size_t bytes, size_t* first);
  void Map(Entry* entry);
  std::string Sizes() const;
  const Entry& EntryOf(const DmaBuffer& buffer) const;
  void Sync(const DmaBuffer& buffer, size_t offset, size_t bytes, const char* direction,
            const char* file) const;

  System system_;
  std::vector<Entry> devices_;
};

// Whichever of them there is. Throws Fault, which says how to get one.
std::unique_ptr<DmaMemory> OpenDmaMemory(const System& system);

}  // namespace vta

#endif  // VTA_BUFFERS_H_
