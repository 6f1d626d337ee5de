// Whether the three stages come to an end with the tokens they pass: see verify_checks.h.
#include <algorithm>
#include <array>
#include <deque>

#include "fault.h"
#include "queues.h"
#include "verify_checks.h"

namespace vta {
namespace {

constexpr uint32_t kCommandDepth = 512;

// The queues as they are on the chip: neither commands nor tokens wait in more places than it has.
class TokenRun {
 public:
  explicit TokenRun(const std::vector<Instruction>& instructions)
      : instructions_(instructions), clocks_(instructions.size()) {}

  const std::vector<Clock>& clocks() const { return clocks_; }

  // Runs until nothing can go on; returns whether everything ran.
  bool Run() {
    for (bool moved = true; moved;) {
      moved = Fetch();
      for (uint32_t stage = 0; stage < kStages; ++stage) {
        while (Execute(stage)) moved = true;
      }
    }
    return done_ == instructions_.size();
  }

  // The first instruction that waits.
  uint32_t Waiting() const {
    uint32_t first = fetched_;
    for (const auto& queue : commands_) {
      if (!queue.empty()) first = std::min(first, queue.front());
    }
    return first;
  }

  QueueSet NotEmpty() const {
    QueueSet queues = 0;
    for (uint32_t queue = 0; queue < kQueues; ++queue) {
      if (!tokens_[queue].empty()) queues |= 1u << queue;
    }
    return queues;
  }

 private:
  bool Fetch() {
    bool moved = false;
    for (; fetched_ < instructions_.size(); ++fetched_, moved = true) {
      std::deque<uint32_t>& queue = commands_[StageOf(instructions_[fetched_])];
      if (queue.size() == kCommandDepth) break;
      queue.push_back(fetched_);
    }
    return moved;
  }

  bool Execute(uint32_t stage) {
    std::deque<uint32_t>& queue = commands_[stage];
    if (queue.empty()) return false;
    const Instruction& one = instructions_[queue.front()];
    const QueueSet pops = Pops(one), pushes = Pushes(one);
    for (uint32_t i = 0; i < kQueues; ++i) {
      if ((pops >> i & 1) != 0 && tokens_[i].empty()) return false;
      if ((pushes >> i & 1) != 0 && tokens_[i].size() == TokenQueues::kDepth) return false;
    }
    Take(stage, pops);
    clocks_[queue.front()] = known_[stage];
    ++known_[stage][stage];
    for (uint32_t i = 0; i < kQueues; ++i) {
      if ((pushes >> i & 1) != 0) tokens_[i].push_back(known_[stage]);
    }
    queue.pop_front();
    ++done_;
    return true;
  }

  // A token tells what its sender knew.
  void Take(uint32_t stage, QueueSet pops) {
    for (uint32_t i = 0; i < kQueues; ++i) {
      if ((pops >> i & 1) == 0) continue;
      for (uint32_t of = 0; of < kStages; ++of) {
        known_[stage][of] = std::max(known_[stage][of], tokens_[i].front()[of]);
      }
      tokens_[i].pop_front();
    }
  }

  const std::vector<Instruction>& instructions_;
  std::deque<uint32_t> commands_[kStages];
  std::array<std::deque<Clock>, kQueues> tokens_;
  std::array<Clock, kStages> known_{};
  std::vector<Clock> clocks_;
  uint32_t fetched_ = 0;
  size_t done_ = 0;
};

// FINISH says that all is done: nobody else's work may be unfinished then. The compute stage has
// taken all tokens by then, so a token of a stage's last instruction shows that it ran.
void CheckLastWork(const std::vector<Instruction>& instructions) {
  const Instruction* last[kStages] = {nullptr, nullptr, nullptr};
  for (const Instruction& one : instructions) last[StageOf(one)] = &one;
  if (last[kLoadStage] != nullptr && last[kLoadStage]->push_next == 0) {
    Fail("FINISH does not wait for the last LOAD: it passes no token");
  }
  if (last[kStoreStage] != nullptr && last[kStoreStage]->push_prev == 0) {
    Fail("FINISH does not wait for the last STORE: it passes no token");
  }
}

void CheckFlags(const Instruction& one) {
  const QueueSet passed = Pops(one) | Pushes(one);  // they refuse queues that a stage has not
  if (one.opcode == kFinish && passed != 0) Fail("FINISH passes no tokens");
}

}  // namespace

std::vector<Clock> CheckTokens(const std::vector<Instruction>& instructions) {
  for (size_t i = 0; i < instructions.size(); ++i) {
    try {
      CheckFlags(instructions[i]);
    } catch (const Fault& fault) {
      Fail("instruction " + std::to_string(i) + ": " + fault.what());
    }
  }
  TokenRun run(instructions);
  if (!run.Run()) {
    Fail("instruction " + std::to_string(run.Waiting()) +
         " waits for a token that never comes, or for a place to put one");
  }
  if (run.NotEmpty() != 0) {
    Fail("tokens that no instruction takes are left in " + QueueNames(run.NotEmpty()));
  }
  CheckLastWork(instructions);
  return run.clocks();
}

}  // namespace vta
