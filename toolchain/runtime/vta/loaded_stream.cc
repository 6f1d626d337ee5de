// See loaded_stream.h.
#include "loaded_stream.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "fault.h"
#include "page_ranges.h"

namespace vta {
namespace {

uint64_t NextNumber() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// Puts a part behind a piece, and returns where.
size_t Append(uint64_t bytes, size_t* piece) {
  const size_t offset = *piece;
  const uint64_t end = offset + ToPages(bytes);
  if (end > SIZE_MAX / 2) Fail("the stream's buffers are larger than this machine's memory");
  *piece = static_cast<size_t>(end);
  return offset;
}

}  // namespace

LoadedStream::LoadedStream(VerifiedStream verified)
    : verified_(std::move(verified)),
      config_(verified_.stream().encoding.logs),
      isa_(config_, verified_.stream().encoding.revision),
      number_(NextNumber()) {
  LayoutWith({});  // which finds out whether this machine can have it at all
}

uint64_t LoadedStream::BufferBytes(size_t buffer) const {
  const StreamBuffer& one = verified_.stream().buffers[buffer];
  return uint64_t{one.elements} * config_.ElementBytes(static_cast<Memory>(one.memory));
}

void LoadedStream::CheckTensors(const std::vector<TensorBytes>& tensors) const {
  const size_t wanted = verified_.stream().buffers.size();
  if (tensors.size() != wanted) {
    Fail("the stream works on " + std::to_string(wanted) + " tensors, not on " +
         std::to_string(tensors.size()));
  }
  for (size_t i = 0; i < wanted; ++i) {
    if (tensors[i].bytes == BufferBytes(i)) continue;
    Fail("tensor " + std::to_string(i) + " has " + std::to_string(tensors[i].bytes) +
         " bytes; the stream's buffer has " + std::to_string(BufferBytes(i)));
  }
}

Layout LoadedStream::LayoutWith(const std::vector<uint64_t>& constants) const {
  const Stream& stream = verified_.stream();
  Layout layout;
  layout.program_kept = std::any_of(constants.begin(), constants.end(),
                                    [](uint64_t number) { return number != 0; });
  size_t* const program = layout.program_kept ? &layout.kept_bytes : &layout.brought_bytes;
  Append(stream.instructions.size(), program);
  layout.uops = Append(stream.uops.size() * kUopBytes, program);
  for (size_t i = 0; i < stream.buffers.size(); ++i) {
    layout.kept.push_back(i < constants.size() && constants[i] != 0);
    size_t* const piece = layout.kept.back() ? &layout.kept_bytes : &layout.brought_bytes;
    layout.offsets.push_back(Append(BufferBytes(i), piece));
  }
  return layout;
}

std::vector<uint8_t> LoadedStream::InstructionsAt(const Places& places) const {
  std::vector<uint8_t> relocated = verified_.stream().instructions;
  for (const Relocation& one : verified_.stream().relocations) {
    Instruction instruction = verified_.instructions()[one.instruction];
    const uint64_t start = one.buffer == kUopSection ? places.uops : places.buffers[one.buffer];
    const uint64_t element = config_.ElementBytes(static_cast<Memory>(instruction.memory));
    const uint64_t address = start / element + instruction.dram_base;
    if (start % element != 0 || address > UINT32_MAX) {
      Fail("the device's memory at " + std::to_string(start) + " cannot be named by a stream");
    }
    instruction.dram_base = static_cast<uint32_t>(address);
    isa_.Encode(instruction, relocated.data() + size_t{one.instruction} * kInstructionBytes);
  }
  return relocated;
}

}  // namespace vta
