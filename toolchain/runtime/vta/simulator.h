// A machine with its pipeline: runs programs that are in its DRAM.
#ifndef VTA_SIMULATOR_H_
#define VTA_SIMULATOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "config.h"
#include "machine.h"
#include "vta_sim.h"

namespace vta {

class Simulator {
 public:
  // Throws Fault where there is no such machine.
  Simulator(const vta_config& config, uint32_t revision);

  Dram& dram() { return machine_.dram(); }

  // As vta_simulator_run. Throws Fault.
  vta_statistics Run(uint64_t physical, uint32_t count, const vta_options& options);

  void Reset() { machine_.sram().Poison(); }

 private:
  void Fetch(uint64_t physical, uint32_t count);
  std::string Describe(uint32_t index) const;

  const Config config_;
  Machine machine_;
  std::vector<Instruction> program_;
};

}  // namespace vta

#endif  // VTA_SIMULATOR_H_
