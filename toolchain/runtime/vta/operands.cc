// See operands.h.
#include "operands.h"

#include <algorithm>

namespace vta {
namespace {

// What is counted from 0 up to `count`, and adds `step` each time.
struct Count {
  int64_t step;
  int64_t count;
};

// Whether one of `inner` and one of `outer` add up to a number.
bool Reaches(Count outer, Count inner, int64_t wanted) {
  if (outer.count <= 0 || inner.count <= 0) return false;
  if (inner.count < outer.count) std::swap(outer, inner);
  const int64_t rounds = outer.step == 0 ? 1 : outer.count;
  for (int64_t i = 0; i < rounds; ++i) {
    const int64_t rest = wanted - i * outer.step;
    if (inner.step == 0) {
      if (rest == 0) return true;
    } else if (rest % inner.step == 0) {
      const int64_t times = rest / inner.step;
      if (times >= 0 && times < inner.count) return true;
    }
  }
  return false;
}

class Search {
 public:
  Search(const Instruction& alu, const std::vector<Uop>& uops)
      : uops_(uops),
        outs_(alu.iter_out),
        ins_(alu.iter_in),
        src_out_(alu.src_factor_out),
        src_in_(alu.src_factor_in),
        // From one iteration to the next, what is written gets so much further from what is read.
        out_(int64_t{alu.dst_factor_out} - src_out_),
        in_(int64_t{alu.dst_factor_in} - src_in_) {}

  bool Within(int64_t distance) const { return Reaches({out_, outs_}, {in_, ins_}, distance); }

  // What uop `from` writes, read `steps` steps later, in another iteration.
  bool Across(size_t from, uint32_t steps) const {
    const int64_t count = static_cast<int64_t>(uops_.size());
    const int64_t later = static_cast<int64_t>(from) + steps;
    const int64_t ahead = later / count;
    if (ahead == 0) return false;
    const int64_t distance = int64_t{uops_[static_cast<size_t>(later % count)].src} -
                             int64_t{uops_[from].dst};
    // Further in the same inner loop; and from its last iterations into the next inner loops.
    if (Reaches({out_, outs_}, {in_, ins_ - ahead}, distance + ahead * src_in_)) return true;
    for (int64_t in = std::max<int64_t>(0, ins_ - ahead); in < ins_; ++in) {
      const int64_t loops = (in + ahead) / ins_;
      const int64_t then = (in + ahead) % ins_;
      const int64_t written = in * (in_ + src_in_);
      const int64_t wanted = distance + loops * src_out_ + then * src_in_ - written;
      if (Reaches({0, 1}, {out_, outs_ - loops}, wanted)) return true;
    }
    return false;
  }

 private:
  const std::vector<Uop>& uops_;
  const int64_t outs_, ins_, src_out_, src_in_, out_, in_;
};

}  // namespace

OperandDistances::OperandDistances(const std::vector<Uop>& uops, uint32_t steps) {
  for (size_t i = 0; i < uops.size(); ++i) {
    for (size_t k = 1; k <= steps && k <= i; ++k) {
      distances_.push_back(int64_t{uops[i].src} - int64_t{uops[i - k].dst});
    }
  }
  std::sort(distances_.begin(), distances_.end());
  distances_.erase(std::unique(distances_.begin(), distances_.end()), distances_.end());
}

bool FindsStale(const Instruction& alu, const std::vector<Uop>& uops,
                const OperandDistances& within, uint32_t steps) {
  if (alu.use_imm != 0 || alu.Steps() == 0) return false;
  const Search search(alu, uops);
  for (const int64_t distance : within.distances()) {
    if (search.Within(distance)) return true;
  }
  const size_t first = uops.size() > steps ? uops.size() - steps : 0;
  for (size_t from = first; from < uops.size(); ++from) {
    for (uint32_t k = 1; k <= steps; ++k) {
      if (search.Across(from, k)) return true;
    }
  }
  return false;
}

}  // namespace vta
