// ACC elements that an ALU operation reads as its second operand: see `FindsStale`.
#ifndef VTA_OPERANDS_H_
#define VTA_OPERANDS_H_

#include <cstdint>
#include <vector>

#include "isa.h"

namespace vta {

// How far the second operands of some uops are from the elements that the uops just before them
// write, as far as one pass over the uops tells.
class OperandDistances {
 public:
  // Of writes by up to `steps` uops before.
  OperandDistances(const std::vector<Uop>& uops, uint32_t steps);

  const std::vector<int64_t>& distances() const { return distances_; }

 private:
  std::vector<int64_t> distances_;  // each once
};

// Whether a step of an ALU operation reads as its second operand what one of up to `steps` steps
// before it has written: the pipeline has that element still in hand, and memory its old value. The
// time it takes depends on the uops and on one of the loops, not on the steps.
bool FindsStale(const Instruction& alu, const std::vector<Uop>& uops,
                const OperandDistances& within, uint32_t steps);

}  // namespace vta

#endif  // VTA_OPERANDS_H_
