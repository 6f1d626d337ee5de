// The parameters of a VTA machine, and the sizes that follow from them.
#ifndef VTA_CONFIG_H_
#define VTA_CONFIG_H_

#include <cstdint>
#include <string>

#include "vta_sim.h"

namespace vta {

// Memories by their number in instructions.
enum Memory : uint32_t { kUop, kWgt, kInp, kAcc, kOut, kMemories };

const char* MemoryName(uint32_t memory);

class Config {
 public:
  // Throws Fault where the parameters make no machine that can be simulated: operands are int8,
  // sums int32.
  explicit Config(const vta_config& logs);

  uint32_t Batch() const { return 1u << logs_.log_batch; }
  uint32_t Block() const { return 1u << logs_.log_block; }
  // log2 of a memory's elements, their number, and the bytes of one of them in DRAM.
  uint32_t LogDepth(Memory memory) const { return LogBytes(memory) - LogElementBytes(memory); }
  uint32_t Depth(Memory memory) const { return 1u << LogDepth(memory); }
  uint32_t ElementBytes(Memory memory) const { return 1u << LogElementBytes(memory); }
  // For example 1x16_i8w8a32_15_15_18_17.
  std::string Name() const;

 private:
  uint32_t LogBytes(Memory memory) const;
  uint32_t LogElementBytes(Memory memory) const;

  vta_config logs_;
};

}  // namespace vta

#endif  // VTA_CONFIG_H_
