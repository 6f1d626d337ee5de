// Checks of a stream before it runs: on the FPGA a wrong one would write over other memory, or
// never end.
#ifndef VTA_VERIFY_H_
#define VTA_VERIFY_H_

#include <cstdint>
#include <vector>

#include "isa.h"
#include "stream.h"

namespace vta {

// Only `Verify` makes one, so that what takes one need not check again.
class VerifiedStream {
 public:
  const Stream& stream() const { return stream_; }
  const std::vector<Instruction>& instructions() const { return instructions_; }
  // Of GEMM and ALU, and elements of LOAD and STORE: no stage takes more cycles than a few of each.
  uint64_t steps() const { return steps_; }
  // Whether it is known to write all of a buffer.
  bool Overwrites(size_t buffer) const { return overwritten_[buffer]; }

 private:
  friend VerifiedStream Verify(Stream stream);
  VerifiedStream() = default;

  Stream stream_;
  std::vector<Instruction> instructions_;
  uint64_t steps_ = 0;
  std::vector<bool> overwritten_;
};

// Throws Fault, which names the instruction and the cause, where the stream
// - does not decode, or asks for what the FPGA does not have;
// - reads or writes SRAM outside its depth, or before anything was put there: results of such ACC
//   elements may be made, but not stored;
// - reads or writes DRAM outside its buffers, or a buffer in the wrong direction;
// - writes one ACC element twice within so few steps that the pipeline loses one, or reads one as an
//   operand so soon after writing it that it may get the old value;
// - waits for tokens that never come, or leaves some behind;
// - lacks tokens, so that two stages may use one element at the same time, or in the wrong order;
// - takes more steps than any layer does.
VerifiedStream Verify(Stream stream);

}  // namespace vta

#endif  // VTA_VERIFY_H_
