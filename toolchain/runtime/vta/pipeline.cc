// See pipeline.h.
#include "pipeline.h"

#include <algorithm>
#include <string>
#include <utility>

#include "fault.h"

namespace vta {
namespace {

constexpr uint64_t kMostWork = uint64_t{1} << 30;

// SplitMix64, https://prng.di.unimi.it/splitmix64.c, in the public domain.
uint64_t NextRandom(uint64_t* state) {
  uint64_t mixed = *state += 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return mixed ^ (mixed >> 31);
}

}  // namespace

Pipeline::Pipeline(const std::vector<Instruction>& program, const CycleModel& model,
                   const vta_options& options, Describe describe)
    : program_(program),
      model_(model),
      options_(options),
      describe_(std::move(describe)),
      random_(options.seed) {
  if (options.policy > VTA_RANDOM) {
    Fail("there is no policy " + std::to_string(options.policy));
  }
  if (program.empty() || program.back().opcode != kFinish) {
    Fail("the last instruction is no FINISH");
  }
  for (uint32_t i = 0; i < program.size(); ++i) Append(i);
}

void Pipeline::Append(uint32_t index) {
  const Instruction& instruction = program_[index];
  if (instruction.opcode == kFinish && index + 1 != program_.size()) {
    Fail(describe_(index) + ": there are instructions after it");
  }
  try {
    lines_[StageOf(instruction)].commands.push_back(
        {index, Pops(instruction), Pushes(instruction)});
  } catch (const Fault& fault) {
    Fail(describe_(index) + ": " + fault.what());
  }
}

vta_statistics Pipeline::Run(const Execute& execute) {
  for (uint32_t done = 0; done < program_.size(); ++done) {
    const uint32_t stage = Choose();
    if (stage == kStages) FailDeadlocked();
    const uint32_t index = lines_[stage].commands[lines_[stage].next].index;
    try {
      Advance(stage, execute);
    } catch (const Fault& fault) {
      Fail(describe_(index) + ": " + fault.what());
    }
  }
  tokens_.CheckEmpty();
  statistics_.load_stalls = lines_[kLoadStage].stalls;
  statistics_.compute_stalls = lines_[kComputeStage].stalls;
  statistics_.store_stalls = lines_[kStoreStage].stalls;
  for (const Timeline& line : lines_) {
    statistics_.cycles = std::max(statistics_.cycles, line.free);
  }
  if (Timed()) statistics_.cycles += model_.Start();
  return statistics_;
}

bool Pipeline::Ready(uint32_t stage) const {
  const Timeline& line = lines_[stage];
  return !line.Done() && tokens_.Have(line.commands[line.next].pops);
}

uint32_t Pipeline::Choose() {
  switch (options_.policy) {
    case VTA_TIMED: return Earliest();
    case VTA_LOAD_FIRST: return FirstReady({kLoadStage, kComputeStage, kStoreStage});
    case VTA_STORE_FIRST: return FirstReady({kStoreStage, kComputeStage, kLoadStage});
    default: return AnyReady();
  }
}

uint64_t Pipeline::Start(const Timeline& line) const {
  return std::max(line.free, tokens_.Time(line.commands[line.next].pops));
}

uint32_t Pipeline::Earliest() const {
  // What has to wait cannot start before what it waits for has ended, so that instructions start,
  // and ask for the bus, in the order in which they are chosen.
  uint32_t earliest = kStages;
  for (uint32_t stage = 0; stage < kStages; ++stage) {
    if (!Ready(stage)) continue;
    if (earliest == kStages || Start(lines_[stage]) < Start(lines_[earliest])) earliest = stage;
  }
  return earliest;
}

uint32_t Pipeline::FirstReady(const std::array<uint32_t, kStages>& order) const {
  for (const uint32_t stage : order) {
    if (Ready(stage)) return stage;
  }
  return kStages;
}

uint32_t Pipeline::AnyReady() {
  std::array<uint32_t, kStages> ready;
  uint32_t count = 0;
  for (uint32_t stage = 0; stage < kStages; ++stage) {
    if (Ready(stage)) ready[count++] = stage;
  }
  return count == 0 ? static_cast<uint32_t>(kStages) : ready[NextRandom(&random_) % count];
}

void Pipeline::Advance(uint32_t stage, const Execute& execute) {
  Timeline& line = lines_[stage];
  const Command& command = line.commands[line.next];
  const Instruction& instruction = program_[command.index];
  CountWork(instruction);
  execute(command.index);
  const uint64_t end = Timed() ? TakeTime(&line, command, instruction) : 0;
  tokens_.Pop(command.pops);
  tokens_.Push(command.pushes, end);
  CountInstruction(instruction);
  ++line.next;
  if (instruction.opcode == kFinish) CheckStores(end);
}

void Pipeline::CountWork(const Instruction& instruction) {
  const uint64_t most = options_.most_cycles != 0 ? options_.most_cycles : kMostWork;
  work_ += CycleModel::Work(instruction);
  if (work_ <= most) return;
  Fail("more than " + std::to_string(most) + " steps and elements by this instruction");
}

uint64_t Pipeline::TakeTime(Timeline* line, const Command& command,
                            const Instruction& instruction) {
  const uint64_t start = std::max(line->free, tokens_.Time(command.pops));
  const Cost cost = model_.Of(instruction);
  line->stalls += start - line->free;
  uint64_t end = start + cost.own;
  if (cost.bus != 0) {
    const uint64_t served = std::max(start, bus_free_);
    bus_free_ = served + cost.bus;
    end = bus_free_ + cost.own;
    statistics_.bus_stalls += served - start;
    statistics_.bus_cycles += cost.bus;
  }
  if (instruction.opcode == kGemm) statistics_.gemm_cycles += end - start;
  if (instruction.opcode == kAlu) statistics_.alu_cycles += end - start;
  return line->free = end;
}

void Pipeline::CountInstruction(const Instruction& instruction) {
  ++statistics_.instructions;
  switch (instruction.opcode) {
    case kLoad:
      ++statistics_.loads;
      statistics_.load_bytes += model_.Bytes(instruction);
      break;
    case kStore:
      ++statistics_.stores;
      statistics_.store_bytes += model_.Bytes(instruction);
      break;
    case kGemm:
      ++statistics_.gemms;
      statistics_.macs += model_.Macs(instruction);
      break;
    case kAlu:
      ++statistics_.alus;
      break;
    default:
      break;
  }
}

// The host reads the results as soon as FINISH is done.
void Pipeline::CheckStores(uint64_t finish) const {
  const Timeline& stores = lines_[kStoreStage];
  for (size_t i = stores.next; i < stores.commands.size(); ++i) {
    if (!program_[stores.commands[i].index].MovesData()) continue;
    Fail("does not wait for " + describe_(stores.commands[i].index));
  }
  if (stores.free <= finish) return;
  Fail("ends at cycle " + std::to_string(finish) + ", before the last STORE at cycle " +
       std::to_string(stores.free));
}

void Pipeline::FailDeadlocked() const {
  std::string text = "deadlock:";
  for (uint32_t stage = 0; stage < kStages; ++stage) {
    const Timeline& line = lines_[stage];
    text += std::string(stage == 0 ? " " : "; ") + StageName(stage);
    if (line.Done()) {
      text += " has ended";
      continue;
    }
    const Command& command = line.commands[line.next];
    text += " waits for " + QueueNames(tokens_.Empty(command.pops)) + " at " +
            describe_(command.index);
  }
  Fail(text);
}

}  // namespace vta
