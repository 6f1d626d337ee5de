// The stages, and the queues of tokens between them.
#ifndef VTA_QUEUES_H_
#define VTA_QUEUES_H_

#include <array>
#include <cstdint>
#include <string>

#include "isa.h"

namespace vta {

enum Stage : uint32_t { kLoadStage, kComputeStage, kStoreStage, kStages };

const char* StageName(uint32_t stage);
Stage StageOf(const Instruction& instruction);

// Named by producer and consumer: load, gemm (the compute stage) and store.
enum Queue : uint32_t { kL2g, kG2l, kG2s, kS2g, kQueues };

// A set of queues: bit i is queue i.
using QueueSet = uint32_t;

// For example "l2g and s2g".
std::string QueueNames(QueueSet queues);

// The queues that an instruction pops before it runs and pushes to afterwards. Throw Fault where
// its stage has no such queue.
QueueSet Pops(const Instruction& instruction);
QueueSet Pushes(const Instruction& instruction);

// The tokens that wait, each with the cycle from which it can be taken.
class TokenQueues {
 public:
  static constexpr uint32_t kDepth = 1024;

  bool Have(QueueSet queues) const { return (queues & ~filled_) == 0; }
  // The queues of a set that are empty.
  QueueSet Empty(QueueSet queues) const { return queues & ~filled_; }
  // The cycle from which the next token of each of these queues can be taken.
  uint64_t Time(QueueSet queues) const;
  void Pop(QueueSet queues);
  // Throws Fault where one is full.
  void Push(QueueSet queues, uint64_t time);
  // Throws Fault where a token is left.
  void CheckEmpty() const;

 private:
  struct Ring {
    std::array<uint64_t, kDepth> times;
    uint32_t first = 0;
    uint32_t count = 0;
  };

  std::array<Ring, kQueues> rings_;
  QueueSet filled_ = 0;
};

}  // namespace vta

#endif  // VTA_QUEUES_H_
