// See cycles.h.
#include "cycles.h"

#include <algorithm>
#include <string>

#include "fault.h"

namespace vta {
namespace {

constexpr uint64_t kAluInterval = 2;

bool Computes(const Instruction& instruction) {
  return instruction.opcode == kGemm || instruction.opcode == kAlu;
}

}  // namespace

CycleModel::CycleModel(const Config& config, uint32_t profile) : config_(config) {
  if (profile == VTA_IDEAL) {
    latencies_ = {0, 0, 0, 0, 0, 8, 0};
  } else if (profile == VTA_HLS_PYNQ) {
    latencies_ = {0, 32, 8, 12, 10, 8, 0};
  } else if (profile == VTA_PYNQ_Z1) {
    latencies_ = {3200, 32, 8, 12, 10, 4, 56};
  } else {
    Fail("there is no cycle profile " + std::to_string(profile));
  }
}

uint64_t CycleModel::Start() const { return latencies_.start; }

Cost CycleModel::Of(const Instruction& instruction) const {
  if (Computes(instruction) && instruction.Steps() > 0) {
    const uint64_t interval = instruction.opcode == kAlu ? kAluInterval : 1;
    const uint64_t refills = latencies_.refill * (instruction.Iterations() - 1);
    return {latencies_.compute + interval * instruction.Steps() + refills, 0};
  }
  const uint64_t bytes = Bytes(instruction);
  if (bytes == 0) return {1, 0};
  return {latencies_.transfer + latencies_.row * instruction.y_size,
          (bytes + latencies_.bus_bytes - 1) / latencies_.bus_bytes +
              latencies_.bus_row * instruction.y_size};
}

uint64_t CycleModel::Bytes(const Instruction& transfer) const {
  if (!transfer.MovesData()) return 0;
  const Memory memory = static_cast<Memory>(transfer.memory);
  return uint64_t{transfer.x_size} * transfer.y_size * config_.ElementBytes(memory);
}

uint64_t CycleModel::Work(const Instruction& instruction) {
  if (Computes(instruction)) return instruction.Steps();
  if (!instruction.MovesData()) return 0;
  return uint64_t{instruction.y_pad_0 + instruction.y_size + instruction.y_pad_1} *
         (instruction.x_pad_0 + instruction.x_size + instruction.x_pad_1);
}

uint64_t CycleModel::Macs(const Instruction& gemm) const {
  if (gemm.reset != 0) return 0;
  return gemm.Steps() * config_.Batch() * config_.Block() * config_.Block();
}

}  // namespace vta
