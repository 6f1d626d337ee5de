// See verify.h.
#include "verify.h"

#include <string>
#include <utility>

#include "config.h"
#include "fault.h"
#include "verify_checks.h"

namespace vta {
namespace {

// Ten seconds at 100 MHz; the largest layers of the networks here take a hundredth of it.
constexpr uint64_t kMostSteps = 1000000000;

[[noreturn]] void Blame(size_t number, const std::string& text, const std::string& cause) {
  Fail("instruction " + std::to_string(number) + " (" + text + "): " + cause);
}

std::vector<Instruction> Decoded(const Stream& stream, const Isa& isa) {
  std::vector<Instruction> instructions;
  instructions.reserve(stream.InstructionCount());
  for (uint32_t i = 0; i < stream.InstructionCount(); ++i) {
    try {
      instructions.push_back(isa.Decode(stream.instructions.data() + kInstructionBytes * i));
    } catch (const Fault& fault) {
      Blame(i, "unreadable", fault.what());
    }
  }
  return instructions;
}

bool IsTransfer(const Instruction& one) { return one.opcode == kLoad || one.opcode == kStore; }

// Gives each LOAD and STORE that moves something its relocation, in order.
class Relocations {
 public:
  explicit Relocations(const std::vector<Relocation>& all) : all_(all) {}

  uint32_t Take(uint32_t number, const Instruction& one) {
    const bool here = next_ < all_.size() && all_[next_].instruction == number;
    const bool wanted = IsTransfer(one) && one.MovesData();
    if (here != wanted) Fail(wanted ? "no relocation names its buffer" : "it has a relocation");
    return here ? all_[next_++].buffer : 0;
  }

  void CheckAllTaken() const {
    if (next_ == all_.size()) return;
    Fail("relocation " + std::to_string(next_) + " of the stream is out of order");
  }

 private:
  const std::vector<Relocation>& all_;
  size_t next_ = 0;
};

uint64_t StepsOf(const Instruction& one) {
  return IsTransfer(one) ? uint64_t{one.y_size} * one.x_size : one.Steps();
}

void CheckEnd(const std::vector<Instruction>& instructions) {
  for (size_t i = 0; i + 1 < instructions.size(); ++i) {
    if (instructions[i].opcode == kFinish) Blame(i, "FINISH", "it is not the last instruction");
  }
  if (instructions.empty() || instructions.back().opcode != kFinish) {
    Fail("the stream does not end with FINISH");
  }
}

void Follow(AccessCheck* check, const Instruction& one, uint32_t buffer) {
  switch (one.opcode) {
    case kLoad: return check->Load(one, buffer);
    case kStore: return check->Store(one, buffer);
    case kGemm: return check->Gemm(one);
    case kAlu: return check->Alu(one);
    default: return;
  }
}

// Returns the steps of all instructions together.
uint64_t CheckAccesses(const Stream& stream, const std::vector<Instruction>& instructions,
                       const Isa& isa, AccessCheck* check) {
  const std::vector<Clock> clocks = CheckTokens(instructions);
  Relocations relocations(stream.relocations);
  uint64_t steps = 0;
  for (uint32_t i = 0; i < instructions.size(); ++i) {
    const Instruction& one = instructions[i];
    try {
      check->Begin(clocks[i]);
      Follow(check, one, relocations.Take(i, one));
      steps += StepsOf(one);
      if (steps > kMostSteps) Fail("the stream takes too many steps: a loop's count is wrong");
    } catch (const Fault& fault) {
      Blame(i, isa.Text(one), fault.what());
    }
  }
  relocations.CheckAllTaken();
  return steps;
}

void CheckBuffers(const std::vector<StreamBuffer>& buffers) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    const bool stored = buffers[i].memory == kOut;
    if (buffers[i].memory != kUop && buffers[i].written == stored) continue;
    Fail("buffer " + std::to_string(i) + " is for " + MemoryName(buffers[i].memory) +
         " and the wrong way round");
  }
}

}  // namespace

VerifiedStream Verify(Stream stream) {
  const Config config(stream.encoding.logs);
  const Isa isa(config, stream.encoding.revision);
  VerifiedStream verified;
  verified.instructions_ = Decoded(stream, isa);
  CheckEnd(verified.instructions_);
  CheckBuffers(stream.buffers);
  AccessCheck check(stream, config, isa);
  verified.steps_ = CheckAccesses(stream, verified.instructions_, isa, &check);
  verified.overwritten_ = check.Overwritten();
  verified.stream_ = std::move(stream);
  return verified;
}

}  // namespace vta
