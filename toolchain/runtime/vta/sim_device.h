// The simulator as a device.
#ifndef VTA_SIM_DEVICE_H_
#define VTA_SIM_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "page_ranges.h"
#include "stream.h"
#include "vta_sim.h"

namespace vta {

class SimDevice final : public Device {
 public:
  // Throws Fault where the simulator has no such machine.
  explicit SimDevice(const Encoding& encoding);
  ~SimDevice() override;

  std::string Name() const override { return "sim"; }
  MemoryKind Memory() const override { return {"the simulator's", ""}; }
  DmaBuffer Allocate(size_t bytes) override;
  void Free(const DmaBuffer& buffer) override;
  void Flush(const DmaBuffer&, size_t, size_t) override {}
  void Invalidate(const DmaBuffer&, size_t, size_t) override {}
  void Run(const Program& program) override;

 private:
  struct Destroyer {
    void operator()(vta_simulator* simulator) const { vta_simulator_destroy(simulator); }
  };

  void MapBuffers(uint64_t base);

  std::unique_ptr<vta_simulator, Destroyer> simulator_;
  std::vector<DmaBuffer> buffers_;
  PageRanges taken_;  // of physical addresses
};

}  // namespace vta

#endif  // VTA_SIM_DEVICE_H_
