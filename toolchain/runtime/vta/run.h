// Runs verified streams on tensors in the CPU's memory.
#ifndef VTA_RUN_H_
#define VTA_RUN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "device.h"
#include "verify.h"

namespace vta {

// The caller's memory for one of a stream's buffers.
struct TensorBytes {
  void* data = nullptr;
  uint64_t bytes = 0;
};

// A verified stream, and its instructions for the place in memory that it last ran at.
class LoadedStream {
 public:
  explicit LoadedStream(VerifiedStream verified);

  const VerifiedStream& verified() const { return verified_; }

  // Throws Fault where the tensors are not those of the stream.
  void CheckTensors(const std::vector<TensorBytes>& tensors) const;

  // Instructions, uops and buffers, in this order: each starts on a page.
  size_t Bytes() const { return bytes_; }
  size_t UopOffset() const { return uop_offset_; }
  size_t BufferOffset(size_t buffer) const { return buffer_offsets_[buffer]; }
  uint64_t BufferBytes(size_t buffer) const;

  // Its instructions where all of it starts at a physical address. Throws Fault where that is too
  // high for their fields.
  const std::vector<uint8_t>& InstructionsAt(uint64_t physical);

 private:
  size_t OffsetOf(uint32_t buffer) const;

  VerifiedStream verified_;
  Config config_;
  Isa isa_;
  size_t bytes_ = 0;
  size_t uop_offset_ = 0;
  std::vector<size_t> buffer_offsets_;
  std::vector<uint8_t> relocated_;
  uint64_t relocated_at_ = 0;
};

// A device with the one piece of memory that its streams run in. One thread at a time.
class Accelerator {
 public:
  explicit Accelerator(std::unique_ptr<Device> device) : device_(std::move(device)) {}
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  Device& device() { return *device_; }

  // Copies all tensors to the device's memory, runs, and copies back those that are written. Throws
  // Fault; the tensors are then as they were.
  void Run(LoadedStream* stream, const std::vector<TensorBytes>& tensors);

  // Memory of at least so many bytes, the same one as before if that has them.
  const DmaBuffer& Memory(size_t bytes);

 private:
  std::unique_ptr<Device> device_;
  DmaBuffer memory_;
};

}  // namespace vta

#endif  // VTA_RUN_H_
