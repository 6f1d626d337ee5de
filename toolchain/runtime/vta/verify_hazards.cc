// How soon a nest writes one ACC element again: see verify_checks.h.
#include <algorithm>

#include "fault.h"
#include "verify_checks.h"

namespace vta {
namespace {

// One step of a nest, and the ACC element that it writes.
struct NestStep {
  uint64_t out, in;
  uint32_t uop;
};

class StepWalk {
 public:
  StepWalk(const Instruction& nest, const std::vector<uint32_t>& uops, const Isa& isa)
      : nest_(nest), uops_(uops), isa_(isa) {}

  bool Next(NestStep* step) const {
    if (++step->uop < nest_.uop_end) return true;
    step->uop = nest_.uop_bgn;
    if (++step->in < nest_.iter_in) return true;
    step->in = 0;
    return ++step->out < nest_.iter_out;
  }

  uint64_t Element(const NestStep& step) const {
    return isa_.DecodeUop(uops_[step.uop]).dst + step.out * nest_.dst_factor_out +
           step.in * nest_.dst_factor_in;
  }

  bool WritesAgain(const NestStep& from) const {
    NestStep step = from;
    for (uint32_t k = 1; k < kWriteDistance && Next(&step); ++k) {
      if (Element(step) == Element(from)) return true;
    }
    return false;
  }

 private:
  const Instruction& nest_;
  const std::vector<uint32_t>& uops_;
  const Isa& isa_;
};

uint64_t Below(uint64_t end, uint64_t count) { return end > count ? end - count : 0; }

}  // namespace

void CheckDistances(const Instruction& nest, const std::vector<uint32_t>& uops, const Isa& isa,
                  bool too_close) {
  constexpr uint32_t kNear = kWriteDistance - 1;
  const StepWalk walk(nest, uops, isa);
  // Distances do not depend on the iteration they start from, except where the inner loop starts
  // again: its first iteration and its last ones stand for all. Of the uops, only the last are
  // followed by another iteration's in time.
  const uint32_t first_uop =
      std::max(nest.uop_bgn, static_cast<uint32_t>(Below(nest.uop_end, kNear)));
  for (uint32_t uop = first_uop; uop < nest.uop_end; ++uop) {
    too_close = too_close || walk.WritesAgain({0, 0, uop});
    for (uint64_t in = Below(nest.iter_in, kNear); in < nest.iter_in; ++in) {
      too_close = too_close || walk.WritesAgain({0, in, uop});
    }
  }
  if (!too_close) return;
  Fail("it writes an ACC element twice within " + std::to_string(kWriteDistance) +
       " steps, which loses one of the sums");
}

void CheckOperandDistances(const Instruction& alu, const UopSets& sets) {
  if (!FindsStale(alu, sets.uops, sets.distances, kWriteDistance - 1)) return;
  Fail("it reads an ACC element within " + std::to_string(kWriteDistance) +
       " steps of writing it, where the old value may still be");
}

}  // namespace vta
