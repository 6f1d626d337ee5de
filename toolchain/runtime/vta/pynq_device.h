// VTA on the FPGA of a Zynq: four blocks that are started and watched by their registers.
#ifndef VTA_PYNQ_DEVICE_H_
#define VTA_PYNQ_DEVICE_H_

#include <memory>
#include <string>

#include "boards.h"
#include "buffers.h"
#include "device.h"
#include "registers.h"
#include "system.h"

namespace vta {

class PynqDevice final : public Device {
 public:
  PynqDevice(const ZynqBoard& board, std::unique_ptr<Registers> registers, OpenedMemory memory);

  std::string Name() const override { return board_.name; }
  MemoryKind Memory() const override { return {memory_->Name(), why_memory_}; }
  DmaBuffer Allocate(size_t bytes) override;
  void Free(const DmaBuffer& buffer) override;
  void Flush(const DmaBuffer& buffer, size_t offset, size_t bytes) override;
  void Invalidate(const DmaBuffer& buffer, size_t offset, size_t bytes) override;
  // After a program that did not end none can run until the FPGA is programmed again.
  void Run(const Program& program) override;

 private:
  void Start(const Program& program);
  bool IsDone() const;
  std::string State() const;

  ZynqBoard board_;
  std::unique_ptr<Registers> registers_;
  std::unique_ptr<DmaMemory> memory_;
  std::string why_memory_;
  std::string hung_;  // what was seen when a program did not end
};

// Programs the board's FPGA with a bitstream and takes hold of it. Throws Fault: this machine is
// not that board, another process uses it, the bitstream is not for it, or something is missing.
std::unique_ptr<Device> OpenZynq(const ZynqBoard& board, const System& system,
                                 const std::string& bitstream, const std::string& configuration);

}  // namespace vta

#endif  // VTA_PYNQ_DEVICE_H_
