// Runs verified streams on tensors in the CPU's memory.
#ifndef VTA_RUN_H_
#define VTA_RUN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "constants.h"
#include "device.h"
#include "loaded_stream.h"

namespace vta {

// What runs have copied between the CPU's memory and a device's, and what stays there.
struct Traffic {
  uint64_t runs = 0;
  uint64_t to_device = 0;  // bytes
  uint64_t from_device = 0;
  uint64_t resident = 0;
};

// A device with the memory that its streams run in: a piece for what each run brings, and for each
// stream with constants a piece that stays as it is. One thread at a time.
class Accelerator {
 public:
  explicit Accelerator(std::unique_ptr<Device> device) : device_(std::move(device)) {}
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  Device& device() { return *device_; }

  // Copies tensors to the device's memory, runs, and copies back those that are written. Those that
  // have a number in `constants`, by buffer, are copied once, with the program: later runs find
  // them there. Where there is no room for that, all is copied. Throws Fault; the tensors are then
  // as they were.
  void Run(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
           const std::vector<uint64_t>& constants = {});

  // Gives back the memory that such constants are kept in.
  void Forget(const std::vector<uint64_t>& constants);

  // Memory of at least so many bytes, the same one as before if that has them.
  const DmaBuffer& Memory(size_t bytes);

  const Traffic& traffic() const { return traffic_; }

 private:
  // A stream, and the numbers of its constants.
  using Key = std::pair<uint64_t, std::vector<uint64_t>>;

  struct Resident {
    Layout layout;
    DmaBuffer memory;
    uint64_t brought = 0;    // where its instructions expect what each run brings
    bool filled = false;
    uint64_t last_run = 0;
  };

  class Filler;

  Resident* Find(const LoadedStream& stream, const std::vector<uint64_t>& constants);
  bool HasMemoryBeside(const Resident* resident);
  void RunKept(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
               Resident* resident);
  void Fill(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
            Resident* resident);
  void RunCopied(const LoadedStream& stream, const std::vector<TensorBytes>& tensors);
  void RunAt(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
             const Layout& layout, uint64_t instructions, Filler* filler);
  DmaBuffer Allocate(size_t bytes, uint64_t unused_since, const Resident* but);
  bool DropOldest(uint64_t unused_since, const Resident* but);
  void Drop(const Resident* resident);
  void DropAt(std::map<Key, Resident>::iterator place);
  void GiveMemoryBack();

  std::unique_ptr<Device> device_;
  DmaBuffer memory_;
  std::map<Key, Resident> residents_;
  size_t refused_ = SIZE_MAX;  // there is no memory of so many bytes, until some is given back
  Traffic traffic_;
};

}  // namespace vta

#endif  // VTA_RUN_H_
