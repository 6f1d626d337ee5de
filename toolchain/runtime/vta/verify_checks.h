// The parts of `Verify`. Each throws Fault with the cause alone; Verify adds the instruction.
#ifndef VTA_VERIFY_CHECKS_H_
#define VTA_VERIFY_CHECKS_H_

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "config.h"
#include "element_set.h"
#include "isa.h"
#include "operands.h"
#include "queues.h"
#include "stream.h"

namespace vta {

// "INP elements 3 to 17".
std::string Range(uint32_t memory, uint64_t first, uint64_t count);

// Writes to one ACC element, and a write and a read of it, are at least so many steps apart: more
// than the pipeline needs, as far as is known.
constexpr uint32_t kWriteDistance = 4;

// What the uops of one GEMM or ALU touch in its first iteration.
struct UopSets {
  UopSets(const Config& config, const Isa& isa, const uint32_t* encoded, uint32_t count);

  ElementSet dst, src, src_acc, wgt;
  Uop most;  // of each field
  std::vector<Uop> uops;
  OperandDistances distances;
  bool too_close = false;  // two of them write one ACC element within kWriteDistance
};

// Checks the distance between writes to one ACC element, of one uop loop and across iterations.
void CheckDistances(const Instruction& nest, const std::vector<uint32_t>& uops, const Isa& isa,
                  bool too_close);

// The same for what an ALU operation reads as its second operand. `sets` is of its uops.
void CheckOperandDistances(const Instruction& alu, const UopSets& sets);

// How many instructions of each stage have surely ended when an instruction begins: the others of
// its own, and of its neighbours those that tokens tell of.
using Clock = std::array<uint32_t, kStages>;

// Runs the queues with tokens alone, and returns each instruction's clock.
std::vector<Clock> CheckTokens(const std::vector<Instruction>& instructions);

// Follows what is in SRAM, instruction by instruction in the order of the program.
class AccessCheck {
 public:
  AccessCheck(const Stream& stream, const Config& config, const Isa& isa);

  // To be called before each instruction.
  void Begin(const Clock& clock) { now_ = clock; }

  // `buffer`: of the instruction's relocation, if it has one.
  void Load(const Instruction& load, uint32_t buffer);
  void Store(const Instruction& store, uint32_t buffer);
  void Gemm(const Instruction& gemm);
  void Alu(const Instruction& alu);

  // By buffer: whether all of it was stored, as far as that was followed.
  std::vector<bool> Overwritten() const;

 private:
  ElementSet Nest(ElementSet set, const char* name, Memory memory, const Instruction& nest,
                  uint64_t most, uint32_t factor_out, uint32_t factor_in) const;
  const UopSets& SetsOf(const Instruction& nest);
  void CheckUops(const Instruction& nest) const;
  void CheckLoaded(Memory memory, const ElementSet& set) const;
  void SetResults(const ElementSet& dst);
  // Two stages at one element of their common memory: one has to be sure that the other has ended.
  void Writes(Memory memory, uint64_t element, Stage by, Stage reader);
  void Reads(Memory memory, uint64_t element, Stage by, Stage writer);
  void LoadUops(const Instruction& load, uint32_t buffer);

  const Stream& stream_;
  const Config& config_;
  const Isa& isa_;
  std::vector<ElementSet> known_;  // by memory: what has been written
  std::vector<uint32_t> uops_;     // the uop SRAM
  Clock now_{};
  // By memory and element: how many instructions its last writer's stage had begun with it, and its
  // last reader's.
  std::vector<std::vector<uint32_t>> written_, read_;
  std::vector<ElementSet> stored_;  // by buffer, of those that are followed
  std::unordered_map<uint64_t, UopSets> sets_;  // by first and last uop, while uops_ stays
};

}  // namespace vta

#endif  // VTA_VERIFY_CHECKS_H_
