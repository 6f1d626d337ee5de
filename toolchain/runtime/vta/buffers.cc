// See buffers.h.
#include "buffers.h"

#include <sys/mman.h>

#include <climits>

#include "fault.h"
#include "shared_library.h"
#include "udmabuf.h"
#include "xrt.h"

namespace vta {

CmaLibrary::CmaLibrary(const std::string& name) {
  const SharedLibrary library(name);
  library.Find("cma_alloc", &alloc_);
  library.Find("cma_get_phy_addr", &physical_);
  library.Find("cma_free", &free_);
  library.Find("cma_flush_cache", &flush_);
  library.Find("cma_invalidate_cache", &invalidate_);
}

DmaBuffer CmaLibrary::Allocate(size_t bytes) {
  constexpr uint32_t kCached = 1;
  const bool possible = bytes <= static_cast<size_t>(INT_MAX);
  void* data = possible ? alloc_(static_cast<uint32_t>(bytes), kCached) : nullptr;
  if (data == nullptr || data == MAP_FAILED) {
    Fail("no contiguous memory for a buffer of " + std::to_string(bytes) +
         " bytes: end other programs that use the FPGA, or give the kernel more (cma=128M)");
  }
  return {static_cast<uint8_t*>(data), physical_(data), bytes};
}

void CmaLibrary::Free(const DmaBuffer& buffer) { free_(buffer.data); }

void CmaLibrary::Flush(const DmaBuffer& buffer, size_t offset, size_t bytes) {
  flush_(buffer.data + offset, static_cast<unsigned int>(buffer.physical + offset),
         static_cast<int>(bytes));
}

void CmaLibrary::Invalidate(const DmaBuffer& buffer, size_t offset, size_t bytes) {
  invalidate_(buffer.data + offset, static_cast<unsigned int>(buffer.physical + offset),
              static_cast<int>(bytes));
}

OpenedMemory OpenDmaMemory(const System& system) {
  std::string passed;
  try {
    return {std::make_unique<XrtLibrary>(system.xrt), ""};
  } catch (const Fault& fault) {
    passed = "XRT: " + std::string(fault.what());
  }
  auto devices = std::make_unique<UdmabufDevices>(system);
  if (devices->Exist()) return {std::move(devices), passed};
  passed += "; u-dma-buf: no device of the kernel module";
  try {
    return {std::make_unique<CmaLibrary>(system.cma), passed};
  } catch (const Fault& fault) {
    passed += "; libcma: " + std::string(fault.what());
  }
  Fail("no memory that the FPGA can address (" + passed +
       "): PYNQ 2.7 and later bring XRT, earlier ones libcma.so, and elsewhere the module gives it: "
       "modprobe u-dma-buf udmabuf0=67108864 (docs/vta-checklist.md)");
}

}  // namespace vta
