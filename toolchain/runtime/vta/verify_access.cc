// What a stream reads and writes: see verify_checks.h.
#include <algorithm>

#include "fault.h"
#include "verify_checks.h"

namespace vta {
namespace {

constexpr int32_t kLeastShift = -16;
constexpr int32_t kMostShift = 15;
// Of all results of a stream; those of the largest layers of the networks here have 2^18.
constexpr uint64_t kMostFollowed = uint64_t{1} << 24;

void CheckSram(const Config& config, uint32_t memory, uint64_t first, uint64_t count) {
  const uint32_t depth = config.Depth(static_cast<Memory>(memory));
  if (first + count <= depth) return;
  Fail(Range(memory, first, count) + " are outside of its " + std::to_string(depth));
}

// Elements of DRAM from the first to behind the last that a LOAD or STORE touches.
void CheckDram(const Instruction& transfer, uint64_t elements, const std::string& place) {
  const uint64_t last_row = uint64_t{transfer.y_size - 1} * transfer.x_stride;
  const uint64_t end = transfer.dram_base + last_row + transfer.x_size;
  if (end <= elements) return;
  Fail("elements up to " + std::to_string(end) + " of " + place + ", which has " +
       std::to_string(elements));
}

void CheckBuffer(const Instruction& transfer, const std::vector<StreamBuffer>& buffers,
                 uint32_t number, bool writes) {
  const std::string place = "buffer " + std::to_string(number);
  if (number >= buffers.size()) Fail(place + " is not one of the stream's");
  const StreamBuffer& buffer = buffers[number];
  if (buffer.memory != transfer.memory) Fail(place + " is for " + MemoryName(buffer.memory));
  if (buffer.written != writes) Fail(place + (writes ? " is only read" : " is only written"));
  CheckDram(transfer, buffer.elements, place);
}

bool HasPads(const Instruction& load) {
  return (load.y_pad_0 | load.y_pad_1 | load.x_pad_0 | load.x_pad_1) != 0;
}

}  // namespace

std::string Range(uint32_t memory, uint64_t first, uint64_t count) {
  const std::string last = count > 1 ? " to " + std::to_string(first + count - 1) : "";
  return std::string(MemoryName(memory)) + (count > 1 ? " elements " : " element ") +
         std::to_string(first) + last;
}

namespace {

std::vector<Uop> DecodedUops(const Isa& isa, const uint32_t* uops, uint32_t count) {
  std::vector<Uop> decoded;
  decoded.reserve(count);
  for (uint32_t i = 0; i < count; ++i) decoded.push_back(isa.DecodeUop(uops[i]));
  return decoded;
}

}  // namespace

UopSets::UopSets(const Config& config, const Isa& isa, const uint32_t* encoded, uint32_t count)
    : dst(config.Depth(kAcc)),
      src(config.Depth(kInp)),
      src_acc(config.Depth(kAcc)),
      wgt(config.Depth(kWgt)),
      uops(DecodedUops(isa, encoded, count)),
      distances(uops, kWriteDistance - 1) {
  const uint32_t acc_depth = config.Depth(kAcc);
  for (uint32_t i = 0; i < count; ++i) {
    const Uop& uop = uops[i];
    dst.Add(uop.dst);
    src.Add(uop.src);
    if (uop.src < acc_depth) src_acc.Add(uop.src);
    wgt.Add(uop.wgt);
    most = {std::max(most.dst, uop.dst), std::max(most.src, uop.src), std::max(most.wgt, uop.wgt)};
    for (uint32_t k = 1; k < kWriteDistance && k <= i; ++k) {
      too_close = too_close || uops[i - k].dst == uop.dst;
    }
  }
}

AccessCheck::AccessCheck(const Stream& stream, const Config& config, const Isa& isa)
    : stream_(stream), config_(config), isa_(isa), uops_(config.Depth(kUop)) {
  for (uint32_t memory = 0; memory < kMemories; ++memory) {
    const uint32_t depth = config.Depth(static_cast<Memory>(memory));
    known_.emplace_back(depth);
    written_.emplace_back(depth);
    read_.emplace_back(depth);
  }
  uint64_t left = kMostFollowed;
  for (const StreamBuffer& one : stream.buffers) {
    const bool followed = one.written && one.elements <= left;
    if (followed) left -= one.elements;
    stored_.emplace_back(followed ? one.elements : 0);
  }
}

std::vector<bool> AccessCheck::Overwritten() const {
  std::vector<bool> all;
  for (size_t i = 0; i < stored_.size(); ++i) {
    uint64_t missing = 0;
    const uint32_t elements = stream_.buffers[i].elements;
    const bool followed = elements != 0 && stored_[i].Depth() >= elements;
    all.push_back(followed && stored_[i].CoversRange(0, elements, &missing));
  }
  return all;
}

void AccessCheck::Load(const Instruction& load, uint32_t buffer) {
  if (!load.MovesData()) {
    if (HasPads(load)) Fail("it loads nothing and pads it");
    return;
  }
  if (load.memory == kUop) return LoadUops(load, buffer);
  if (load.memory == kWgt && HasPads(load)) Fail("weights are loaded without padding");
  if (load.memory == kAcc && HasPads(load) && isa_.Revision() == VTA_2020_07) {
    Fail("padding of ACC loads is broken before revision 2020-12");
  }
  const uint64_t rows = uint64_t{load.y_pad_0} + load.y_size + load.y_pad_1;
  const uint64_t columns = uint64_t{load.x_pad_0} + load.x_size + load.x_pad_1;
  CheckSram(config_, load.memory, load.sram_base, rows * columns);
  CheckBuffer(load, stream_.buffers, buffer, false);
  known_[load.memory].AddRange(load.sram_base, rows * columns);
  if (load.memory == kAcc) return;  // it has the compute stage to itself
  for (uint64_t i = 0; i < rows * columns; ++i) {
    Writes(static_cast<Memory>(load.memory), load.sram_base + i, kLoadStage, kComputeStage);
  }
}

void AccessCheck::Writes(Memory memory, uint64_t element, Stage by, Stage reader) {
  if (read_[memory][element] > now_[reader]) {
    Fail(Range(memory, element, 1) + " is overwritten while the " + StageName(reader) +
         " stage may still read it: a token is missing");
  }
  written_[memory][element] = now_[by] + 1;
}

void AccessCheck::Reads(Memory memory, uint64_t element, Stage by, Stage writer) {
  if (written_[memory][element] > now_[writer]) {
    Fail(Range(memory, element, 1) + " is read before the " + StageName(writer) +
         " stage has surely written it: a token is missing");
  }
  read_[memory][element] = now_[by] + 1;
}

void AccessCheck::LoadUops(const Instruction& load, uint32_t buffer) {
  if (HasPads(load) || load.y_size != 1) Fail("micro-ops are loaded as one row without padding");
  if (buffer != kUopSection) Fail("micro-ops come from the stream itself, not from a buffer");
  CheckSram(config_, kUop, load.sram_base, load.x_size);
  CheckDram(load, stream_.uops.size(), "the micro-ops");
  std::copy_n(stream_.uops.begin() + load.dram_base, load.x_size,
              uops_.begin() + load.sram_base);
  known_[kUop].AddRange(load.sram_base, load.x_size);
  sets_.clear();
}

void AccessCheck::Store(const Instruction& store, uint32_t buffer) {
  if (store.memory != kOut) Fail("only OUT can be stored");
  if (!store.MovesData()) return;
  const uint64_t count = uint64_t{store.y_size} * store.x_size;
  CheckSram(config_, kOut, store.sram_base, count);
  CheckBuffer(store, stream_.buffers, buffer, true);
  uint64_t missing = 0;
  if (!known_[kOut].CoversRange(store.sram_base, count, &missing)) {
    Fail(Range(kOut, missing, 1) + " holds no result: an ALU operation has to write it first");
  }
  for (uint64_t i = 0; i < count; ++i) {
    Reads(kOut, store.sram_base + i, kStoreStage, kComputeStage);
  }
  if (stored_[buffer].Depth() < stream_.buffers[buffer].elements) return;
  for (uint64_t row = 0; row < store.y_size; ++row) {
    stored_[buffer].AddRange(store.dram_base + row * store.x_stride, store.x_size);
  }
}

void AccessCheck::CheckUops(const Instruction& nest) const {
  const uint64_t count = nest.uop_end - nest.uop_bgn;
  CheckSram(config_, kUop, nest.uop_bgn, count);
  uint64_t missing = 0;
  if (known_[kUop].CoversRange(nest.uop_bgn, count, &missing)) return;
  Fail(Range(kUop, missing, 1) + " was not loaded");
}

const UopSets& AccessCheck::SetsOf(const Instruction& nest) {
  CheckUops(nest);
  const uint64_t key = uint64_t{nest.uop_bgn} << 32 | nest.uop_end;
  const auto found = sets_.find(key);
  if (found != sets_.end()) return found->second;
  const uint32_t count = nest.uop_end - nest.uop_bgn;
  return sets_.try_emplace(key, config_, isa_, uops_.data() + nest.uop_bgn, count).first->second;
}

ElementSet AccessCheck::Nest(ElementSet set, const char* name, Memory memory,
                             const Instruction& nest, uint64_t most, uint32_t factor_out,
                             uint32_t factor_in) const {
  const uint64_t last = most + uint64_t{nest.iter_out - 1} * factor_out +
                        uint64_t{nest.iter_in - 1} * factor_in;
  if (last >= config_.Depth(memory)) {
    Fail("its " + std::string(name) + " gets to " + Range(memory, last, 1) + " of " +
         std::to_string(config_.Depth(memory)));
  }
  set.Repeat(nest.iter_in, factor_in);
  set.Repeat(nest.iter_out, factor_out);
  return set;
}

void AccessCheck::CheckLoaded(Memory memory, const ElementSet& set) const {
  uint64_t missing = 0;
  if (known_[memory].Covers(set, &missing)) return;
  Fail(Range(memory, missing, 1) + " is read and nothing was put there");
}

// Kernels may add to ACC elements in which nothing is, to fill the pipeline: such sums stay
// unknown, and so does what OUT has of them.
void AccessCheck::SetResults(const ElementSet& dst) {
  ElementSet results = dst;
  results.KeepOnly(known_[kAcc]);
  known_[kOut].RemoveAll(dst);
  known_[kOut].AddAll(results);
}

void AccessCheck::Gemm(const Instruction& gemm) {
  if (gemm.Steps() == 0) return;
  const UopSets& sets = SetsOf(gemm);
  const ElementSet dst = Nest(sets.dst, "dst", kAcc, gemm, sets.most.dst, gemm.dst_factor_out,
                              gemm.dst_factor_in);
  const ElementSet src = Nest(sets.src, "src", kInp, gemm, sets.most.src, gemm.src_factor_out,
                              gemm.src_factor_in);
  const ElementSet wgt = Nest(sets.wgt, "wgt", kWgt, gemm, sets.most.wgt, gemm.wgt_factor_out,
                              gemm.wgt_factor_in);
  CheckDistances(gemm, uops_, isa_, sets.too_close);
  dst.ForEach([&](uint64_t one) { Writes(kOut, one, kComputeStage, kStoreStage); });
  if (gemm.reset != 0) {
    known_[kAcc].AddAll(dst);
    known_[kOut].RemoveAll(dst);  // it gets what the sum would have been
    return;
  }
  CheckLoaded(kInp, src);
  CheckLoaded(kWgt, wgt);
  src.ForEach([&](uint64_t one) { Reads(kInp, one, kComputeStage, kLoadStage); });
  wgt.ForEach([&](uint64_t one) { Reads(kWgt, one, kComputeStage, kLoadStage); });
  SetResults(dst);
}

void AccessCheck::Alu(const Instruction& alu) {
  if (alu.alu_op == kMul) Fail("the FPGA has no MUL");
  const bool shifts = alu.alu_op == kShr && alu.use_imm != 0;
  if (shifts && (alu.Immediate() < kLeastShift || alu.Immediate() > kMostShift)) {
    Fail("it shifts by " + std::to_string(alu.Immediate()) + ", not by -16 to 15");
  }
  if (alu.Steps() == 0) return;
  const UopSets& sets = SetsOf(alu);
  const ElementSet dst =
      Nest(sets.dst, "dst", kAcc, alu, sets.most.dst, alu.dst_factor_out, alu.dst_factor_in);
  const ElementSet src =
      Nest(sets.src_acc, "src", kAcc, alu, sets.most.src, alu.src_factor_out, alu.src_factor_in);
  CheckDistances(alu, uops_, isa_, sets.too_close);
  CheckOperandDistances(alu, sets);
  if (alu.use_imm == 0) CheckLoaded(kAcc, src);
  dst.ForEach([&](uint64_t one) { Writes(kOut, one, kComputeStage, kStoreStage); });
  SetResults(dst);
}

}  // namespace vta
