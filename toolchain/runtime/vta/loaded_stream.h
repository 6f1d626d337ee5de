// A verified stream that can be put anywhere in a device's memory.
#ifndef VTA_LOADED_STREAM_H_
#define VTA_LOADED_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "constants.h"
#include "verify.h"

namespace vta {

// Physical addresses of what a stream's instructions name.
struct Places {
  uint64_t uops = 0;
  std::vector<uint64_t> buffers;

  bool operator==(const Places& other) const {
    return uops == other.uops && buffers == other.buffers;
  }
};

// Where the parts of a stream are in the two pieces of memory that it runs in: what stays there
// from one run to the next, and what each run brings. Each part starts on a page.
struct Layout {
  size_t kept_bytes = 0;
  size_t brought_bytes = 0;
  size_t uops = 0;                   // behind the instructions, which come first
  std::vector<bool> kept;            // by buffer
  std::vector<size_t> offsets;       // by buffer, in its piece
  bool program_kept = false;         // instructions and uops
};

class LoadedStream {
 public:
  explicit LoadedStream(VerifiedStream verified);

  const VerifiedStream& verified() const { return verified_; }
  // No other has it, in this process.
  uint64_t number() const { return number_; }

  // Throws Fault where the tensors are not those of the stream.
  void CheckTensors(const std::vector<TensorBytes>& tensors) const;

  uint64_t BufferBytes(size_t buffer) const;

  // With its program and the buffers of `constants` that have a number kept, or with nothing kept
  // where none has.
  Layout LayoutWith(const std::vector<uint64_t>& constants) const;

  // Its instructions for such places. Throws Fault where one is too high for their fields.
  std::vector<uint8_t> InstructionsAt(const Places& places) const;

 private:
  VerifiedStream verified_;
  Config config_;
  Isa isa_;
  uint64_t number_;
};

}  // namespace vta

#endif  // VTA_LOADED_STREAM_H_
