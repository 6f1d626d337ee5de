// In which order, and when, the three stages execute their instructions.
#ifndef VTA_PIPELINE_H_
#define VTA_PIPELINE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "cycles.h"
#include "isa.h"
#include "queues.h"

namespace vta {

// One run of a program. Each stage executes its own instructions in order, and each waits for the
// tokens that it pops; which of the stages that could go on does so is the policy's choice.
class Pipeline {
 public:
  // Told what to do, in the order in which it is done; throws Fault.
  using Execute = std::function<void(uint32_t index)>;
  // Words for an instruction in an error.
  using Describe = std::function<std::string(uint32_t index)>;

  // Throws Fault where a flag names a queue that the stage does not have, where FINISH is not the
  // last instruction and the only one, and where there is no such policy or profile.
  Pipeline(const std::vector<Instruction>& program, const CycleModel& model,
           const vta_options& options, Describe describe);

  // Throws Fault: that of an instruction, too much work, a deadlock, a full queue, tokens that are
  // left, or a FINISH that does not wait for all stores.
  vta_statistics Run(const Execute& execute);

 private:
  struct Command {
    uint32_t index;  // in the program
    QueueSet pops;
    QueueSet pushes;
  };
  struct Timeline {
    std::vector<Command> commands;
    size_t next = 0;
    uint64_t free = 0;  // cycle at which its last instruction ended
    uint64_t stalls = 0;

    bool Done() const { return next == commands.size(); }
  };

  void Append(uint32_t index);
  bool Ready(uint32_t stage) const;
  uint32_t Choose();
  uint32_t Earliest() const;
  uint32_t FirstReady(const std::array<uint32_t, kStages>& order) const;
  uint32_t AnyReady();
  void Advance(uint32_t stage, const Execute& execute);
  void CountWork(const Instruction& instruction);
  uint64_t TakeTime(Timeline* line, const Command& command, const Instruction& instruction);
  void CountInstruction(const Instruction& instruction);
  void CheckStores(uint64_t finish) const;
  uint64_t Start(const Timeline& line) const;
  [[noreturn]] void FailDeadlocked() const;
  bool Timed() const { return options_.policy == VTA_TIMED; }

  const std::vector<Instruction>& program_;
  const CycleModel& model_;
  const vta_options options_;
  const Describe describe_;
  std::array<Timeline, kStages> lines_;
  TokenQueues tokens_;
  uint64_t bus_free_ = 0;
  uint64_t random_;
  uint64_t work_ = 0;
  vta_statistics statistics_{};
};

}  // namespace vta

#endif  // VTA_PIPELINE_H_
