// Memory that the FPGA can address: it knows physical addresses alone, and no pages.
#ifndef VTA_BUFFERS_H_
#define VTA_BUFFERS_H_

#include <memory>
#include <string>

#include "device.h"
#include "system.h"

namespace vta {

// See Device. All functions throw Fault.
class DmaMemory {
 public:
  virtual ~DmaMemory() = default;
  // What it is, for people.
  virtual std::string Name() const = 0;
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

  std::string Name() const override { return "libcma"; }
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

// Whichever kind there is, the first of: XRT's library where a device answers, devices of u-dma-buf,
// PYNQ's library. Throws Fault, which says how to get one.
struct OpenedMemory {
  std::unique_ptr<DmaMemory> memory;
  std::string why;  // those that came before it, and why they were passed over; may be empty
};
OpenedMemory OpenDmaMemory(const System& system);

}  // namespace vta

#endif  // VTA_BUFFERS_H_
