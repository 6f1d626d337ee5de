// Any program on VTA's simulator: a configuration, a revision, a policy, and the instructions, which
// are what its DRAM holds, too.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "fuzz.h"
#include "vta/vta_sim.h"

namespace {

constexpr uint8_t kMostLog = 14;
constexpr size_t kInstruction = 16, kDram = 1 << 14;

struct Head {
  vta_config config;
  uint8_t revision, policy, profile;
};

struct Destroyer {
  void operator()(vta_simulator* simulator) const { vta_simulator_destroy(simulator); }
};

void Describe(const Head& head, const uint8_t* bytes) {
  char text[256], error[256];
  uint8_t again[kInstruction];
  const int refused = vta_instruction_text(&head.config, head.revision, bytes, text, sizeof(text),
                                           again, error, sizeof(error));
  fuzz::Must(refused != 0 || memcmp(again, bytes, kInstruction) == 0);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Head head;
  if (size < sizeof(head) + kInstruction || size > kDram) return 0;
  memcpy(&head, data, sizeof(head));
  const vta_config& logs = head.config;
  if (std::max({logs.log_uop_buff_size, logs.log_inp_buff_size, logs.log_wgt_buff_size,
                logs.log_acc_buff_size}) > kMostLog) {
    return 0;
  }
  char error[256];
  const std::unique_ptr<vta_simulator, Destroyer> simulator(
      vta_simulator_create(&logs, head.revision, error, sizeof(error)));
  if (simulator == nullptr) return 0;
  std::vector<uint8_t> dram(kDram);
  std::copy(data + sizeof(head), data + size, dram.begin());
  Describe(head, dram.data());
  vta_simulator_map(simulator.get(), 0, dram.data(), dram.size(), 1);
  vta_options options = {};
  options.policy = head.policy;
  options.profile = head.profile;
  options.compute = 1;
  options.most_cycles = 1 << 14;
  vta_statistics statistics;
  const uint32_t count = static_cast<uint32_t>((size - sizeof(head)) / kInstruction);
  vta_simulator_run(simulator.get(), 0, count, &options, &statistics, error, sizeof(error));
  return 0;
}
