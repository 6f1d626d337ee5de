// The two units that write ACC and OUT.
#ifndef VTA_COMPUTE_H_
#define VTA_COMPUTE_H_

#include <vector>

#include "config.h"
#include "isa.h"
#include "memory.h"

namespace vta {

// ACC += INP * WGT for each step, and the low byte of the sum to OUT. With `reset` 0 goes to ACC,
// while OUT still gets the low byte of the sum. Indexes must have been checked.
void RunGemm(const Config& config, const Instruction& gemm, const std::vector<Uop>& uops,
             Sram* sram);

// ACC = op(ACC, immediate or ACC) for each step, and its low byte to OUT. SHR takes the low 5 bits
// of its second operand as a signed number; a negative one shifts left. MUL is not there. Indexes
// must have been checked.
void RunAlu(const Config& config, const Instruction& alu, const std::vector<Uop>& uops, Sram* sram);

}  // namespace vta

#endif  // VTA_COMPUTE_H_
