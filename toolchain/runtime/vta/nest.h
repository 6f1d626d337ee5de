// The loops of GEMM and ALU: over iter_out, iter_in and micro-ops.
#ifndef VTA_NEST_H_
#define VTA_NEST_H_

#include <cstdint>
#include <vector>

#include "config.h"
#include "isa.h"

namespace vta {

// A step may not write an ACC element that one of so many steps before it wrote: the sum that it
// adds to is not there yet.
constexpr uint32_t kHazardSteps = 2;

// Calls step(dst, src, wgt) in the machine's order.
template <typename Step>
void ForEachStep(const Instruction& nest, const std::vector<Uop>& uops, Step step) {
  for (uint32_t out = 0; out < nest.iter_out; ++out) {
    for (uint32_t in = 0; in < nest.iter_in; ++in) {
      const uint32_t dst = out * nest.dst_factor_out + in * nest.dst_factor_in;
      const uint32_t src = out * nest.src_factor_out + in * nest.src_factor_in;
      const uint32_t wgt = out * nest.wgt_factor_out + in * nest.wgt_factor_in;
      for (const Uop& uop : uops) step(dst + uop.dst, src + uop.src, wgt + uop.wgt);
    }
  }
}

// Throw Fault where a step's index is outside of its memory, and where two steps are too close.
// The time they take depends on the micro-ops, not on the iterations.
void CheckRanges(const Config& config, const Instruction& nest, const std::vector<Uop>& uops);
void CheckHazards(const Instruction& nest, const std::vector<Uop>& uops);
// The same where an ALU operation reads what was written too close before.
void CheckOperands(const Instruction& alu, const std::vector<Uop>& uops);

}  // namespace vta

#endif  // VTA_NEST_H_
