// See run.h.
#include "run.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "fault.h"

namespace vta {
namespace {

constexpr uint64_t kPage = 4096;
// A step takes a cycle or two, at 100 MHz or more; what waits for memory takes longer.
constexpr double kSecondsPerStep = 1e-6;
constexpr double kLeastTimeout = 1.0;

uint64_t ToPages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

LoadedStream::LoadedStream(VerifiedStream verified)
    : verified_(std::move(verified)),
      config_(verified_.stream().encoding.logs),
      isa_(config_, verified_.stream().encoding.revision) {
  const Stream& stream = verified_.stream();
  uint64_t end = ToPages(stream.instructions.size());
  uop_offset_ = static_cast<size_t>(end);
  end += ToPages(stream.uops.size() * kUopBytes);
  for (size_t i = 0; i < stream.buffers.size(); ++i) {
    buffer_offsets_.push_back(static_cast<size_t>(end));
    end += ToPages(BufferBytes(i));
    if (end > SIZE_MAX / 2) Fail("the stream's buffers are larger than this machine's memory");
  }
  bytes_ = static_cast<size_t>(end);
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

size_t LoadedStream::OffsetOf(uint32_t buffer) const {
  return buffer == kUopSection ? uop_offset_ : buffer_offsets_[buffer];
}

const std::vector<uint8_t>& LoadedStream::InstructionsAt(uint64_t physical) {
  if (!relocated_.empty() && relocated_at_ == physical) return relocated_;
  std::vector<uint8_t> relocated = verified_.stream().instructions;
  for (const Relocation& one : verified_.stream().relocations) {
    Instruction instruction = verified_.instructions()[one.instruction];
    const uint64_t start = physical + OffsetOf(one.buffer);
    const uint64_t element = config_.ElementBytes(static_cast<Memory>(instruction.memory));
    const uint64_t address = start / element + instruction.dram_base;
    if (start % element != 0 || address > UINT32_MAX) {
      Fail("the device's memory at " + std::to_string(physical) + " cannot be named by a stream");
    }
    instruction.dram_base = static_cast<uint32_t>(address);
    isa_.Encode(instruction, relocated.data() + size_t{one.instruction} * kInstructionBytes);
  }
  relocated_ = std::move(relocated);
  relocated_at_ = physical;
  return relocated_;
}

Accelerator::~Accelerator() {
  if (memory_.data != nullptr) device_->Free(memory_);
}

const DmaBuffer& Accelerator::Memory(size_t bytes) {
  if (memory_.size >= bytes && memory_.data != nullptr) return memory_;
  if (memory_.data != nullptr) device_->Free(memory_);
  memory_ = {};
  memory_ = device_->Allocate(std::max<size_t>(bytes, kPage));
  return memory_;
}

void Accelerator::Run(LoadedStream* stream, const std::vector<TensorBytes>& tensors) {
  stream->CheckTensors(tensors);
  const DmaBuffer& memory = Memory(stream->Bytes());
  const Stream& plain = stream->verified().stream();
  const std::vector<uint8_t>& instructions = stream->InstructionsAt(memory.physical);
  memcpy(memory.data, instructions.data(), instructions.size());
  memcpy(memory.data + stream->UopOffset(), plain.uops.data(), plain.uops.size() * kUopBytes);
  // Those that are written too: a stream need not write all of them.
  for (size_t i = 0; i < tensors.size(); ++i) {
    memcpy(memory.data + stream->BufferOffset(i), tensors[i].data, tensors[i].bytes);
  }
  device_->Flush(memory, 0, stream->Bytes());
  Program program;
  program.instructions = memory.physical;
  program.count = plain.InstructionCount();
  program.timeout_s =
      kLeastTimeout + kSecondsPerStep * static_cast<double>(stream->verified().steps());
  device_->Run(program);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!plain.buffers[i].written) continue;
    const size_t offset = stream->BufferOffset(i);
    device_->Invalidate(memory, offset, tensors[i].bytes);
    memcpy(tensors[i].data, memory.data + offset, tensors[i].bytes);
  }
}

}  // namespace vta
