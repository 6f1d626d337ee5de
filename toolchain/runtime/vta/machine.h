// What each instruction does, and what the FPGA cannot do.
#ifndef VTA_MACHINE_H_
#define VTA_MACHINE_H_

#include <vector>

#include "config.h"
#include "isa.h"
#include "memory.h"

namespace vta {

// One machine with its memories. Order and time are the pipeline's.
class Machine {
 public:
  Machine(const Config& config, uint32_t revision);

  Dram& dram() { return dram_; }
  Sram& sram() { return sram_; }
  const vta::Isa& isa() const { return isa_; }

  // Throws Fault where the FPGA would fail or compute something else. What depends on micro-ops
  // and addresses in DRAM is left to Execute.
  void Check(const Instruction& instruction) const;
  // Throws Fault as well.
  void Execute(const Instruction& instruction);

 private:
  void CheckLoad(const Instruction& load) const;
  void CheckStore(const Instruction& store) const;
  void CheckNest(const Instruction& nest) const;
  void CheckTile(const Instruction& transfer, uint64_t elements) const;

  void Load(const Instruction& load);
  void LoadRow(const Instruction& load, Memory memory, uint32_t row, uint32_t index);
  void Store(const Instruction& store);
  void RunNest(const Instruction& nest);

  const Config config_;
  const vta::Isa isa_;
  Dram dram_;
  Sram sram_;
  std::vector<Uop> uops_;  // of the instruction that runs
};

}  // namespace vta

#endif  // VTA_MACHINE_H_
