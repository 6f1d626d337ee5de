// Streams: programs for VTA that were compiled beforehand, as the bytes that files and RPC carry.
#ifndef VTA_STREAM_H_
#define VTA_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "vta_sim.h"

namespace vta {

// What a stream is encoded for.
struct Encoding {
  vta_config logs = {};
  uint32_t revision = 0;
};

bool operator==(const vta_config& one, const vta_config& other);
inline bool operator!=(const vta_config& one, const vta_config& other) { return !(one == other); }

// One tensor that a stream works on; the caller brings it.
struct StreamBuffer {
  uint32_t memory = 0;  // the SRAM that it goes to or comes from, which says its elements' bytes
  bool written = false;
  uint32_t elements = 0;
};

// Which buffer a LOAD or STORE counts its `dram_base` in.
struct Relocation {
  uint32_t instruction = 0;
  uint32_t buffer = 0;
};

constexpr uint32_t kUopSection = 0xffffffff;  // a Relocation's `buffer` where LOAD loads uops

struct Stream {
  Encoding encoding;
  std::vector<StreamBuffer> buffers;
  std::vector<uint8_t> instructions;  // 16 bytes each
  std::vector<uint32_t> uops;
  std::vector<Relocation> relocations;

  uint32_t InstructionCount() const { return static_cast<uint32_t>(instructions.size() / 16); }
};

// Reads a stream. Throws Fault where it is cut, damaged or of another format; what it does is
// verify.h's business.
Stream ParseStream(const uint8_t* data, size_t size);

}  // namespace vta

#endif  // VTA_STREAM_H_
