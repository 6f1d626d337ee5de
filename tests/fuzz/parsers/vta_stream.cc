// A stream of VTA, as it is and with the right checksum. One that passes the checks has to run on
// the simulator, which has its own: whatever order the stages take, nothing goes wrong.
#include <cstdio>
#include <cstring>

#include "fuzz.h"
#include "vta/base64.h"
#include "vta/fault.h"
#include "vta/run.h"
#include "vta/sim_device.h"
#include "vta/stream.h"
#include "vta/verify.h"

namespace {

constexpr size_t kChecksumAt = 40;
constexpr uint8_t kMostLog = 14;         // of an SRAM's bytes: more takes long and shows no more
constexpr uint64_t kMostBytes = 1 << 20;  // of the tensors
constexpr uint64_t kMostSteps = 1 << 14;

std::vector<uint8_t> WithChecksum(std::vector<uint8_t> bytes) {
  if (bytes.size() < kChecksumAt + 4) return bytes;
  uint32_t crc = ~0u;
  for (size_t i = kChecksumAt + 4; i < bytes.size(); ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320u : 0);
  }
  crc = ~crc;
  memcpy(bytes.data() + kChecksumAt, &crc, sizeof(crc));
  return bytes;
}

bool IsSmall(const vta_config& logs) {
  return logs.log_uop_buff_size <= kMostLog && logs.log_inp_buff_size <= kMostLog &&
         logs.log_wgt_buff_size <= kMostLog && logs.log_acc_buff_size <= kMostLog;
}

using Arrays = std::vector<std::vector<uint8_t>>;

// Its tensors after a run of each kind in turn: with constants that stay in the device's memory, or
// without.
Arrays Run(const vta::LoadedStream& stream, const std::vector<bool>& kept) {
  const vta::Stream& plain = stream.verified().stream();
  vta::Accelerator accelerator(std::make_unique<vta::SimDevice>(plain.encoding));
  Arrays memory;
  for (const bool keeps : kept) {
    memory.clear();
    std::vector<vta::TensorBytes> tensors;
    std::vector<uint64_t> constants;
    for (size_t i = 0; i < plain.buffers.size(); ++i) {
      memory.emplace_back(stream.BufferBytes(i), static_cast<uint8_t>(i + 1));
      tensors.push_back({memory[i].data(), memory[i].size()});
      constants.push_back(keeps && !plain.buffers[i].written && i % 2 == 1 ? i + 1 : 0);
    }
    accelerator.Run(stream, tensors, constants);
  }
  return memory;
}

void Check(const std::vector<uint8_t>& bytes) {
  const vta::Stream stream = vta::ParseStream(bytes.data(), bytes.size());
  if (!IsSmall(stream.encoding.logs)) return;
  vta::LoadedStream loaded(vta::Verify(stream));
  const size_t bytes_of_all = loaded.LayoutWith({}).brought_bytes;
  if (bytes_of_all > kMostBytes || loaded.verified().steps() > kMostSteps) return;
  try {
    if (Run(loaded, {false}) == Run(loaded, {true, false, true})) return;
    fprintf(stderr, "weights that stay in the device's memory make other results\n");
    abort();
  } catch (const vta::Fault& fault) {
    fprintf(stderr, "verified, and refused by the simulator: %s\n", fault.what());
    abort();
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> bytes(data, data + size);
  fuzz::Accepts<vta::Fault>([&] { Check(bytes); });
  fuzz::Accepts<vta::Fault>([&] { Check(WithChecksum(bytes)); });
  fuzz::Accepts<vta::Fault>([&] { vta::FromBase64(fuzz::Text(data, size)); });
  return 0;
}
