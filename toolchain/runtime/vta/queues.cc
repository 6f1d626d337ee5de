// See queues.h.
#include "queues.h"

#include <algorithm>

#include "fault.h"

namespace vta {
namespace {

constexpr QueueSet kNoQueue = 0;

QueueSet Only(Queue queue) { return 1u << queue; }

// What each of an instruction's four flags means in each stage.
struct Ports {
  QueueSet pop_prev;
  QueueSet pop_next;
  QueueSet push_prev;
  QueueSet push_next;
};

const Ports& PortsOf(Stage stage) {
  static const Ports kPorts[kStages] = {
      {kNoQueue, Only(kG2l), kNoQueue, Only(kL2g)},
      {Only(kL2g), Only(kS2g), Only(kG2l), Only(kG2s)},
      {Only(kG2s), kNoQueue, Only(kS2g), kNoQueue},
  };
  return kPorts[stage];
}

QueueSet Flagged(Stage stage, const char* name, uint32_t flag, QueueSet queue) {
  if (flag == 0) return kNoQueue;
  if (queue == kNoQueue) {
    Fail(std::string(name) + " is set, but the " + StageName(stage) + " stage has no such queue");
  }
  return queue;
}

}  // namespace

const char* StageName(uint32_t stage) {
  static constexpr const char* kNames[kStages] = {"load", "compute", "store"};
  return kNames[stage];
}

Stage StageOf(const Instruction& instruction) {
  if (instruction.opcode == kStore) return kStoreStage;
  if (instruction.opcode != kLoad) return kComputeStage;
  return instruction.memory == kInp || instruction.memory == kWgt ? kLoadStage : kComputeStage;
}

std::string QueueNames(QueueSet queues) {
  static constexpr const char* kNames[kQueues] = {"l2g", "g2l", "g2s", "s2g"};
  std::string text;
  for (uint32_t queue = 0; queue < kQueues; ++queue) {
    if ((queues >> queue & 1) == 0) continue;
    text += (text.empty() ? "" : " and ") + std::string(kNames[queue]);
  }
  return text;
}

QueueSet Pops(const Instruction& instruction) {
  const Stage stage = StageOf(instruction);
  const Ports& ports = PortsOf(stage);
  return Flagged(stage, "pop_prev", instruction.pop_prev, ports.pop_prev) |
         Flagged(stage, "pop_next", instruction.pop_next, ports.pop_next);
}

QueueSet Pushes(const Instruction& instruction) {
  const Stage stage = StageOf(instruction);
  const Ports& ports = PortsOf(stage);
  return Flagged(stage, "push_prev", instruction.push_prev, ports.push_prev) |
         Flagged(stage, "push_next", instruction.push_next, ports.push_next);
}

uint64_t TokenQueues::Time(QueueSet queues) const {
  uint64_t time = 0;
  for (uint32_t queue = 0; queue < kQueues; ++queue) {
    const Ring& ring = rings_[queue];
    if ((queues >> queue & 1) != 0) time = std::max(time, ring.times[ring.first]);
  }
  return time;
}

void TokenQueues::Pop(QueueSet queues) {
  for (uint32_t queue = 0; queue < kQueues; ++queue) {
    if ((queues >> queue & 1) == 0) continue;
    Ring& ring = rings_[queue];
    ring.first = (ring.first + 1) % kDepth;
    if (--ring.count == 0) filled_ &= ~(1u << queue);
  }
}

void TokenQueues::Push(QueueSet queues, uint64_t time) {
  for (uint32_t queue = 0; queue < kQueues; ++queue) {
    if ((queues >> queue & 1) == 0) continue;
    Ring& ring = rings_[queue];
    if (ring.count == kDepth) {
      Fail("pushes to " + QueueNames(1u << queue) + ", which is full: it holds " +
           std::to_string(kDepth) + " tokens");
    }
    ring.times[(ring.first + ring.count++) % kDepth] = time;
    filled_ |= 1u << queue;
  }
}

void TokenQueues::CheckEmpty() const {
  for (uint32_t queue = 0; queue < kQueues; ++queue) {
    const uint32_t count = rings_[queue].count;
    if (count == 0) continue;
    Fail("tokens left in " + QueueNames(1u << queue) + " for the next run: " +
         std::to_string(count));
  }
}

}  // namespace vta
