// What runs programs: the FPGA, or a simulator of it.
#ifndef VTA_DEVICE_H_
#define VTA_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace vta {

// Memory that both sides see, contiguous and aligned to pages.
struct DmaBuffer {
  uint8_t* data = nullptr;
  uint64_t physical = 0;
  size_t size = 0;
};

struct MemoryKind {
  std::string name;
  std::string why;  // kinds that were passed over for it, and their causes; may be empty
};

struct Program {
  uint64_t instructions = 0;  // physical address
  uint32_t count = 0;
  uint64_t base = 0;  // bytes, added to every address that a LOAD or STORE counts
  double timeout_s = 0;
};

// All functions throw Fault. One thread at a time.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string Name() const = 0;
  // Of which kind its memory is, and why, for people.
  virtual MemoryKind Memory() const = 0;

  virtual DmaBuffer Allocate(size_t bytes) = 0;
  virtual void Free(const DmaBuffer& buffer) = 0;

  // Makes what the CPU wrote there visible to the device, where its caches are not coherent.
  virtual void Flush(const DmaBuffer& buffer, size_t offset, size_t bytes) = 0;
  // Makes what the device wrote there visible to the CPU, which must not have written meanwhile.
  virtual void Invalidate(const DmaBuffer& buffer, size_t offset, size_t bytes) = 0;

  // Returns once the program's FINISH was executed.
  virtual void Run(const Program& program) = 0;
};

}  // namespace vta

#endif  // VTA_DEVICE_H_
