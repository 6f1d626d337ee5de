// See simulator.h.
#include "simulator.h"

#include "cycles.h"
#include "fault.h"
#include "pipeline.h"

namespace vta {

Simulator::Simulator(const vta_config& config, uint32_t revision)
    : config_(config), machine_(config_, revision) {}

vta_statistics Simulator::Run(uint64_t physical, uint32_t count, const vta_options& options) {
  Fetch(physical, count);
  const CycleModel model(config_, options.profile);
  Pipeline pipeline(program_, model, options, [this](uint32_t index) { return Describe(index); });
  return pipeline.Run([this, &options](uint32_t index) {
    if (options.compute != 0) {
      machine_.Execute(program_[index]);
    } else {
      machine_.Check(program_[index]);
    }
  });
}

void Simulator::Fetch(uint64_t physical, uint32_t count) {
  program_.clear();
  if (count == 0) Fail("the program is empty");
  const uint8_t* bytes =
      machine_.dram().Read(physical, static_cast<uint64_t>(count) * kInstructionBytes);
  for (uint32_t i = 0; i < count; ++i, bytes += kInstructionBytes) {
    try {
      program_.push_back(machine_.isa().Decode(bytes));
    } catch (const Fault& fault) {
      Fail("instruction " + std::to_string(i) + ": " + fault.what());
    }
  }
}

std::string Simulator::Describe(uint32_t index) const {
  return "instruction " + std::to_string(index) + " (" + machine_.isa().Text(program_[index]) + ")";
}

}  // namespace vta
