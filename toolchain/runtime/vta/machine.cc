// See machine.h.
#include "machine.h"

#include <algorithm>
#include <string>

#include "compute.h"
#include "fault.h"
#include "nest.h"

namespace vta {
namespace {

bool HasPadding(const Instruction& load) {
  return (load.y_pad_0 | load.y_pad_1 | load.x_pad_0 | load.x_pad_1) != 0;
}

uint32_t TileRows(const Instruction& load) { return load.y_pad_0 + load.y_size + load.y_pad_1; }

uint32_t TileWidth(const Instruction& load) { return load.x_pad_0 + load.x_size + load.x_pad_1; }

// Where row `row` of a transfer starts in DRAM.
uint64_t RowAddress(const Instruction& transfer, uint32_t row, uint32_t element_bytes) {
  return (transfer.dram_base + uint64_t{row} * transfer.x_stride) * element_bytes;
}

}  // namespace

Machine::Machine(const Config& config, uint32_t revision)
    : config_(config), isa_(config, revision), sram_(config) {}

void Machine::Check(const Instruction& instruction) const {
  switch (instruction.opcode) {
    case kLoad: return CheckLoad(instruction);
    case kStore: return CheckStore(instruction);
    case kGemm:
    case kAlu: return CheckNest(instruction);
    default: return;
  }
}

void Machine::CheckLoad(const Instruction& load) const {
  if (!load.MovesData()) return;
  if (load.memory == kUop && load.y_size != 1) Fail("UOP loads have one row");
  if (HasPadding(load)) {
    if (load.memory == kUop || load.memory == kWgt) {
      Fail(std::string("the FPGA ignores padding of ") + MemoryName(load.memory) + " loads");
    }
    if (load.memory == kAcc && isa_.Revision() == VTA_2020_07) {
      Fail("padding of ACC loads is broken before revision 2020-12");
    }
  }
  CheckTile(load, uint64_t{TileRows(load)} * TileWidth(load));
}

void Machine::CheckStore(const Instruction& store) const {
  if (store.memory != kOut) {
    Fail(std::string("only OUT can be stored, not ") + MemoryName(store.memory));
  }
  if (store.MovesData()) CheckTile(store, uint64_t{store.y_size} * store.x_size);
}

void Machine::CheckTile(const Instruction& transfer, uint64_t elements) const {
  const uint32_t depth = config_.Depth(static_cast<Memory>(transfer.memory));
  if (transfer.sram_base + elements <= depth) return;
  Fail("reaches element " + std::to_string(transfer.sram_base + elements - 1) + " of " +
       MemoryName(transfer.memory) + ", which has " + std::to_string(depth));
}

void Machine::CheckNest(const Instruction& nest) const {
  if (nest.opcode == kAlu && nest.alu_op == kMul) Fail("the FPGA has no MUL");
  if (nest.Steps() == 0 || nest.uop_end <= config_.Depth(kUop)) return;
  Fail("takes micro-ops up to " + std::to_string(nest.uop_end - 1) + " of UOP, which has " +
       std::to_string(config_.Depth(kUop)));
}

void Machine::Execute(const Instruction& instruction) {
  Check(instruction);
  switch (instruction.opcode) {
    case kLoad: return Load(instruction);
    case kStore: return Store(instruction);
    case kGemm:
    case kAlu: return RunNest(instruction);
    default: return;
  }
}

void Machine::Load(const Instruction& load) {
  if (!load.MovesData()) return;
  const Memory memory = static_cast<Memory>(load.memory);
  const uint32_t width = TileWidth(load);
  uint32_t index = load.sram_base;
  sram_.Zero(memory, index, load.y_pad_0 * width);
  index += load.y_pad_0 * width;
  for (uint32_t row = 0; row < load.y_size; ++row, index += width) {
    LoadRow(load, memory, row, index);
  }
  sram_.Zero(memory, index, load.y_pad_1 * width);
}

void Machine::LoadRow(const Instruction& load, Memory memory, uint32_t row, uint32_t index) {
  const uint32_t bytes = config_.ElementBytes(memory);
  const uint8_t* from =
      dram_.Read(RowAddress(load, row, bytes), static_cast<uint64_t>(load.x_size) * bytes);
  sram_.Zero(memory, index, load.x_pad_0);
  sram_.Load(memory, index + load.x_pad_0, from, load.x_size);
  sram_.Zero(memory, index + load.x_pad_0 + load.x_size, load.x_pad_1);
}

void Machine::Store(const Instruction& store) {
  const uint32_t bytes = config_.ElementBytes(kOut);
  const size_t row_bytes = static_cast<size_t>(store.x_size) * bytes;
  const int8_t* from = sram_.out.data() + static_cast<size_t>(store.sram_base) * bytes;
  for (uint32_t row = 0; store.MovesData() && row < store.y_size; ++row, from += row_bytes) {
    std::copy_n(from, row_bytes, dram_.Write(RowAddress(store, row, bytes), row_bytes));
  }
}

void Machine::RunNest(const Instruction& nest) {
  if (nest.Steps() == 0) return;
  uops_.clear();
  for (uint32_t i = nest.uop_bgn; i < nest.uop_end; ++i) {
    uops_.push_back(isa_.DecodeUop(sram_.uop[i]));
  }
  CheckRanges(config_, nest, uops_);
  CheckHazards(nest, uops_);
  if (nest.opcode == kAlu) CheckOperands(nest, uops_);
  if (nest.opcode == kGemm) {
    RunGemm(config_, nest, uops_, &sram_);
  } else {
    RunAlu(config_, nest, uops_, &sram_);
  }
}

}  // namespace vta
