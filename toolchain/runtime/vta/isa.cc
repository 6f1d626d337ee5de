// See isa.h.
#include "isa.h"

#include "fault.h"

namespace vta {
namespace {

constexpr uint32_t kHalf = 64;  // bits

uint64_t Ones(uint32_t width) { return width >= 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1; }

void LoadHalves(const uint8_t* bytes, uint64_t halves[2]) {
  for (uint32_t i = 0; i < 2; ++i) {
    halves[i] = 0;
    for (uint32_t byte = 8; byte-- > 0;) halves[i] = halves[i] << 8 | bytes[8 * i + byte];
  }
}

std::string Hex(const uint8_t* bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint32_t i = 0; i < kInstructionBytes; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

// Lays fields out one after another.
class LayoutWriter {
 public:
  LayoutWriter& Add(const char* name, uint32_t Instruction::*member, uint32_t width) {
    if (next_ + width > kHalf) Fail("the fields of an instruction do not fit its 128 bits");
    layout_.fields.push_back({name, member, half_ * kHalf + next_, width});
    layout_.used[half_] |= Ones(width) << next_;
    return Skip(width);
  }

  LayoutWriter& Skip(uint32_t width) {
    next_ += width;
    return *this;
  }

  LayoutWriter& SecondHalf() {
    half_ = 1;
    next_ = 0;
    return *this;
  }

  InstructionLayout Done() const { return layout_; }

 private:
  InstructionLayout layout_;
  uint32_t half_ = 0;
  uint32_t next_ = 0;  // bit within the half
};

LayoutWriter Common() {
  LayoutWriter writer;
  writer.Add("opcode", &Instruction::opcode, 3)
      .Add("pop_prev", &Instruction::pop_prev, 1)
      .Add("pop_next", &Instruction::pop_next, 1)
      .Add("push_prev", &Instruction::push_prev, 1)
      .Add("push_next", &Instruction::push_next, 1);
  return writer;
}

LayoutWriter Transfer(uint32_t memory_bits) {
  return Common()
      .Add("memory", &Instruction::memory, memory_bits)
      .Add("sram_base", &Instruction::sram_base, 16)
      .Add("dram_base", &Instruction::dram_base, 32)
      .SecondHalf()
      .Add("y_size", &Instruction::y_size, 16)
      .Add("x_size", &Instruction::x_size, 16)
      .Add("x_stride", &Instruction::x_stride, 16);
}

InstructionLayout LoadLayout(uint32_t memory_bits) {
  return Transfer(memory_bits)
      .Add("y_pad_0", &Instruction::y_pad_0, 4)
      .Add("y_pad_1", &Instruction::y_pad_1, 4)
      .Add("x_pad_0", &Instruction::x_pad_0, 4)
      .Add("x_pad_1", &Instruction::x_pad_1, 4)
      .Done();
}

// The loops, and the factors of dst and src, which GEMM and ALU have in common.
LayoutWriter Nest(LayoutWriter start, const Config& config, Memory src) {
  const uint32_t uop = config.LogDepth(kUop);
  return start.Add("uop_bgn", &Instruction::uop_bgn, uop)
      .Add("uop_end", &Instruction::uop_end, uop + 1)
      .Add("iter_out", &Instruction::iter_out, 14)
      .Add("iter_in", &Instruction::iter_in, 14)
      .SecondHalf()
      .Add("dst_factor_out", &Instruction::dst_factor_out, config.LogDepth(kAcc))
      .Add("dst_factor_in", &Instruction::dst_factor_in, config.LogDepth(kAcc))
      .Add("src_factor_out", &Instruction::src_factor_out, config.LogDepth(src))
      .Add("src_factor_in", &Instruction::src_factor_in, config.LogDepth(src));
}

InstructionLayout GemmLayout(const Config& config) {
  return Nest(Common().Add("reset", &Instruction::reset, 1), config, kInp)
      .Add("wgt_factor_out", &Instruction::wgt_factor_out, config.LogDepth(kWgt))
      .Add("wgt_factor_in", &Instruction::wgt_factor_in, config.LogDepth(kWgt))
      .Done();
}

InstructionLayout AluLayout(const Config& config, Memory src, uint32_t op_bits) {
  return Nest(Common().Skip(1), config, src)
      .Add("alu_op", &Instruction::alu_op, op_bits)
      .Add("use_imm", &Instruction::use_imm, 1)
      .Add("imm", &Instruction::imm, 16)
      .Done();
}

// What is wrong with a decoded instruction; empty if nothing is.
std::string Unknown(const Instruction& instruction) {
  const uint32_t memory = instruction.memory;
  if (instruction.opcode == kLoad && memory >= kOut) {
    return "there is no LOAD into memory " + std::to_string(memory);
  }
  if (memory >= kMemories) return "there is no memory " + std::to_string(memory);
  if (instruction.alu_op < kAluOps) return "";
  return "there is no ALU operation " + std::to_string(instruction.alu_op);
}

const char* AluName(uint32_t op) {
  static constexpr const char* kNames[] = {"MIN", "MAX", "ADD", "SHR", "MUL"};
  return op < kAluOps ? kNames[op] : "unknown";
}

const char* OpcodeName(uint32_t opcode) {
  static constexpr const char* kNames[] = {"LOAD", "STORE", "GEMM", "FINISH", "ALU"};
  return opcode < kOpcodes ? kNames[opcode] : "unknown";
}

}  // namespace

Isa::Isa(const Config& config, uint32_t revision) : revision_(revision) {
  if (revision != VTA_2020_07 && revision != VTA_2020_12) {
    Fail("there is no revision " + std::to_string(revision) + " of the instructions");
  }
  const bool old = revision == VTA_2020_07;
  layouts_[kLoad] = LoadLayout(old ? 2 : 3);
  layouts_[kStore] = Transfer(old ? 2 : 3).Done();
  layouts_[kGemm] = GemmLayout(config);
  layouts_[kFinish] = Common().Done();
  layouts_[kAlu] = AluLayout(config, old ? kInp : kAcc, old ? 2 : 3);
  const uint32_t dst = config.LogDepth(kAcc);
  const uint32_t src = config.LogDepth(kInp);
  const uint32_t wgt = config.LogDepth(kWgt);
  if (dst + src + wgt > 8 * kUopBytes) Fail("the fields of a micro-op do not fit its 32 bits");
  const auto ones = [](uint32_t width) { return static_cast<uint32_t>(Ones(width)); };
  masks_ = {ones(dst), ones(src), ones(wgt)};
  shifts_ = {dst, dst + src};
}

Instruction Isa::Decode(const uint8_t* bytes) const {
  uint64_t halves[2];
  LoadHalves(bytes, halves);
  const uint32_t opcode = static_cast<uint32_t>(halves[0] & Ones(3));
  if (opcode >= kOpcodes) Fail(Hex(bytes) + ": opcode " + std::to_string(opcode) + " is unknown");
  const InstructionLayout& layout = layouts_[opcode];
  if (((halves[0] & ~layout.used[0]) | (halves[1] & ~layout.used[1])) != 0) {
    Fail(Hex(bytes) + ": bits of a " + OpcodeName(opcode) + " that mean nothing are set");
  }
  Instruction instruction;
  for (const InstructionField& field : layout.fields) {
    instruction.*field.member = static_cast<uint32_t>(
        halves[field.low / kHalf] >> field.low % kHalf & Ones(field.width));
  }
  // Two bits have no room for OUT, and only OUT is ever stored.
  if (revision_ == VTA_2020_07 && opcode == kStore && instruction.memory == kUop) {
    instruction.memory = kOut;
  }
  const std::string wrong = Unknown(instruction);
  if (!wrong.empty()) Fail(Hex(bytes) + ": " + wrong);
  return instruction;
}

void Isa::Encode(const Instruction& instruction, uint8_t* bytes) const {
  if (instruction.opcode >= kOpcodes) {
    Fail("opcode " + std::to_string(instruction.opcode) + " is unknown");
  }
  uint64_t halves[2] = {0, 0};
  for (const InstructionField& field : layouts_[instruction.opcode].fields) {
    uint64_t value = instruction.*field.member;
    const bool is_memory = field.member == &Instruction::memory;
    if (is_memory && instruction.opcode == kStore && revision_ == VTA_2020_07) {
      value = value == kOut ? 0 : value;
    }
    if (value > Ones(field.width)) {
      Fail(std::string(field.name) + " is " + std::to_string(value) + ", above " +
           std::to_string(Ones(field.width)));
    }
    halves[field.low / kHalf] |= value << field.low % kHalf;
  }
  for (uint32_t i = 0; i < kInstructionBytes; ++i) {
    bytes[i] = static_cast<uint8_t>(halves[i / 8] >> 8 * (i % 8));
  }
}

uint32_t Isa::EncodeUop(const Uop& uop) const {
  if (uop.dst > masks_[0] || uop.src > masks_[1] || uop.wgt > masks_[2]) {
    Fail("micro-op " + std::to_string(uop.dst) + ", " + std::to_string(uop.src) + ", " +
         std::to_string(uop.wgt) + " does not fit its fields");
  }
  return uop.dst | uop.src << shifts_[0] | uop.wgt << shifts_[1];
}

std::string Isa::Text(const Instruction& instruction) const {
  std::string text = OpcodeName(instruction.opcode);
  for (const InstructionField& field : layouts_[instruction.opcode].fields) {
    const uint32_t value = instruction.*field.member;
    if (field.member == &Instruction::opcode) continue;
    if (field.member == &Instruction::memory) {
      text += std::string(" ") + MemoryName(value);
    } else if (field.member == &Instruction::alu_op) {
      text += std::string(" ") + AluName(value);
    } else if (field.member == &Instruction::imm) {
      text += " imm=" + std::to_string(instruction.Immediate());
    } else if (value != 0) {
      text += std::string(" ") + field.name + (field.width == 1 ? "" : "=" + std::to_string(value));
    }
  }
  return text;
}

}  // namespace vta
