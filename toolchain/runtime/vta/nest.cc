// See nest.h.
#include "nest.h"

#include <algorithm>
#include <string>

#include "fault.h"
#include "operands.h"

namespace vta {
namespace {

// Factors and indexes are not negative, so that the last iteration reaches furthest.
void CheckFurthest(const Config& config, const Instruction& nest, Memory memory, uint32_t uop,
                   uint32_t factor_out, uint32_t factor_in) {
  const uint64_t furthest = uint64_t{nest.iter_out - 1} * factor_out +
                            uint64_t{nest.iter_in - 1} * factor_in + uop;
  if (furthest < config.Depth(memory)) return;
  Fail("reaches element " + std::to_string(furthest) + " of " + MemoryName(memory) +
       ", which has " + std::to_string(config.Depth(memory)));
}

struct Place {
  uint64_t out;
  uint64_t in;
  size_t uop;
};

uint64_t Target(const Instruction& nest, const std::vector<Uop>& uops, const Place& place) {
  return place.out * nest.dst_factor_out + place.in * nest.dst_factor_in + uops[place.uop].dst;
}

// The place `distance` steps later; its `out` is iter_out or more behind the end.
Place Later(const Instruction& nest, size_t uops, Place place, uint32_t distance) {
  for (uint32_t i = 0; i < distance; ++i) {
    if (++place.uop < uops) continue;
    place.uop = 0;
    if (++place.in < nest.iter_in) continue;
    place.in = 0;
    ++place.out;
  }
  return place;
}

void CheckAfter(const Instruction& nest, const std::vector<Uop>& uops, const Place& place) {
  for (uint32_t distance = 1; distance <= kHazardSteps; ++distance) {
    const Place later = Later(nest, uops.size(), place, distance);
    if (later.out >= nest.iter_out) return;
    const uint64_t target = Target(nest, uops, place);
    if (Target(nest, uops, later) != target) continue;
    Fail("writes element " + std::to_string(target) + " of ACC twice within " +
         std::to_string(kHazardSteps + 1) + " steps, at micro-ops " +
         std::to_string(nest.uop_bgn + place.uop) + " and " +
         std::to_string(nest.uop_bgn + later.uop));
  }
}

}  // namespace

void CheckRanges(const Config& config, const Instruction& nest, const std::vector<Uop>& uops) {
  Uop most;
  for (const Uop& uop : uops) {
    most.dst = std::max(most.dst, uop.dst);
    most.src = std::max(most.src, uop.src);
    most.wgt = std::max(most.wgt, uop.wgt);
  }
  const bool gemm = nest.opcode == kGemm;
  CheckFurthest(config, nest, kAcc, most.dst, nest.dst_factor_out, nest.dst_factor_in);
  if (gemm || nest.use_imm == 0) {
    CheckFurthest(config, nest, gemm ? kInp : kAcc, most.src, nest.src_factor_out,
                  nest.src_factor_in);
  }
  if (gemm) {
    CheckFurthest(config, nest, kWgt, most.wgt, nest.wgt_factor_out, nest.wgt_factor_in);
  }
}

void CheckHazards(const Instruction& nest, const std::vector<Uop>& uops) {
  // How far apart two close steps write depends only on the loops that advance between them: all
  // iterations of the outer loop are like the first, and of the inner loop all but the last ones.
  const size_t last = uops.size() > kHazardSteps ? uops.size() - kHazardSteps : 0;
  for (size_t uop = 0; uop < last; ++uop) CheckAfter(nest, uops, {0, 0, uop});
  for (uint64_t in = 0; in < nest.iter_in; ++in) {
    for (size_t uop = last; uop < uops.size(); ++uop) CheckAfter(nest, uops, {0, in, uop});
    if (in == 0 && nest.iter_in > kHazardSteps + 1) in = nest.iter_in - kHazardSteps - 1;
  }
}

void CheckOperands(const Instruction& alu, const std::vector<Uop>& uops) {
  if (!FindsStale(alu, uops, OperandDistances(uops, kHazardSteps), kHazardSteps)) return;
  Fail("reads an element of ACC that one of the " + std::to_string(kHazardSteps) +
       " steps before writes: the FPGA may read its old value");
}

}  // namespace vta
