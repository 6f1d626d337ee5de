// Instructions and micro-ops as bits: 128 and 32 of them, little endian.
#ifndef VTA_ISA_H_
#define VTA_ISA_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "config.h"

namespace vta {

enum Opcode : uint32_t { kLoad, kStore, kGemm, kFinish, kAlu, kOpcodes };
enum AluOp : uint32_t { kMin, kMax, kAdd, kShr, kMul, kAluOps };

constexpr uint32_t kInstructionBytes = 16;
constexpr uint32_t kUopBytes = 4;

// The fields of every kind of instruction; those that its opcode does not have are 0.
struct Instruction {
  uint32_t opcode = kFinish;
  uint32_t pop_prev = 0;
  uint32_t pop_next = 0;
  uint32_t push_prev = 0;
  uint32_t push_next = 0;
  // LOAD and STORE
  uint32_t memory = 0;
  uint32_t sram_base = 0;
  uint32_t dram_base = 0;  // in elements
  uint32_t y_size = 0;
  uint32_t x_size = 0;
  uint32_t x_stride = 0;
  uint32_t y_pad_0 = 0;
  uint32_t y_pad_1 = 0;
  uint32_t x_pad_0 = 0;
  uint32_t x_pad_1 = 0;
  // GEMM and ALU
  uint32_t reset = 0;
  uint32_t uop_bgn = 0;
  uint32_t uop_end = 0;
  uint32_t iter_out = 0;
  uint32_t iter_in = 0;
  uint32_t dst_factor_out = 0;
  uint32_t dst_factor_in = 0;
  uint32_t src_factor_out = 0;
  uint32_t src_factor_in = 0;
  uint32_t wgt_factor_out = 0;
  uint32_t wgt_factor_in = 0;
  uint32_t alu_op = 0;
  uint32_t use_imm = 0;
  uint32_t imm = 0;  // the bits of a signed 16-bit number

  int32_t Immediate() const { return static_cast<int16_t>(imm); }
  // Whether a LOAD or STORE moves anything; if not, it only passes tokens.
  bool MovesData() const { return x_size != 0 && y_size != 0; }
  // Passes of the two hardware loops, and of all three; at most 2^28 and 2^53.
  uint64_t Iterations() const { return static_cast<uint64_t>(iter_out) * iter_in; }
  uint64_t Steps() const { return uop_end > uop_bgn ? Iterations() * (uop_end - uop_bgn) : 0; }
};

struct Uop {
  uint32_t dst = 0;
  uint32_t src = 0;
  uint32_t wgt = 0;
};

// Where a field of an instruction is: none crosses the middle of its 128 bits.
struct InstructionField {
  const char* name;
  uint32_t Instruction::*member;
  uint32_t low;  // bit
  uint32_t width;
};

struct InstructionLayout {
  std::vector<InstructionField> fields;
  uint64_t used[2] = {0, 0};  // bits that belong to a field
};

// How one machine encodes them.
class Isa {
 public:
  // Throws Fault where the fields do not fit or there is no such revision.
  Isa(const Config& config, uint32_t revision);

  uint32_t Revision() const { return revision_; }

  // Throws Fault: unknown opcode, memory or ALU operation, or bits set that mean nothing.
  Instruction Decode(const uint8_t* bytes) const;
  // Throws Fault where a value does not fit its field.
  void Encode(const Instruction& instruction, uint8_t* bytes) const;

  Uop DecodeUop(uint32_t word) const {
    return {word & masks_[0], (word >> shifts_[0]) & masks_[1], (word >> shifts_[1]) & masks_[2]};
  }
  uint32_t EncodeUop(const Uop& uop) const;

  // One line: the instruction's name and its fields, those of 0 left out.
  std::string Text(const Instruction& instruction) const;

 private:
  InstructionLayout layouts_[kOpcodes];
  uint32_t revision_;
  std::array<uint32_t, 3> masks_;   // of a uop's dst, src and wgt
  std::array<uint32_t, 2> shifts_;  // where src and wgt start
};

}  // namespace vta

#endif  // VTA_ISA_H_
