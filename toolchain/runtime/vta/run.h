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
#include "results.h"

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
  // them there. Those of `stays`, by buffer, are read and written by streams alone: what is written
  // stays in the device's memory, where there are constants to say for how long, and what is read
  // is looked for there. Where there is no room for any of that, all is copied. Throws Fault; the
  // tensors are then as they were.
  void Run(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
           const std::vector<uint64_t>& constants = {}, const std::vector<bool>& stays = {});

  // Gives back the memory that such constants are kept in, and what was made with them.
  void Forget(const std::vector<uint64_t>& constants);

  // Where the callers' tensors are whose contents are in the device's memory alone.
  std::vector<const void*> Staying() const { return results_.Places(); }

  // Memory of at least so many bytes, the same one as before if that has them.
  const DmaBuffer& Memory(size_t bytes);

  const Traffic& traffic() const { return traffic_; }

 private:
  // A stream, and the numbers of its constants.
  using Key = std::pair<uint64_t, std::vector<uint64_t>>;

  struct Resident {
    Layout layout;
    DmaBuffer memory;
    Places places;  // where its instructions expect everything
    bool filled = false;
    uint64_t last_run = 0;
  };

  class Filler;

  Resident* Find(const LoadedStream& stream, const std::vector<uint64_t>& constants);
  bool HasMemoryBeside(const Resident* resident);
  std::vector<uint64_t> Stay(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
                             const std::vector<uint64_t>& constants,
                             const std::vector<bool>& stays);
  uint64_t RoomFor(const TensorBytes& tensor, uint64_t owner, size_t brought);
  DmaBuffer AllocateBeside(size_t bytes, size_t others);
  void DropResult(const DmaBuffer& memory);
  void RunKept(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
               const std::vector<uint64_t>& placed, Resident* resident);
  void Fill(const LoadedStream& stream, const std::vector<TensorBytes>& tensors, Places places,
            Resident* resident);
  void RunCopied(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
                 const std::vector<uint64_t>& placed);
  void RunAt(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
             const std::vector<uint64_t>& placed, const Layout& layout, uint64_t instructions,
             Filler* filler);
  DmaBuffer Allocate(size_t bytes, uint64_t unused_since, const Resident* but);
  bool DropOldest(uint64_t unused_since, const Resident* but);
  void Drop(const Resident* resident);
  void DropAt(std::map<Key, Resident>::iterator place);
  void GiveMemoryBack();
  void ForgetRefusals();

  std::unique_ptr<Device> device_;
  DmaBuffer memory_;
  std::map<Key, Resident> residents_;
  Results results_;
  bool results_stay_ = true;  // until there was no memory for a run for their sake
  size_t refused_ = SIZE_MAX;  // there is no memory of so many bytes, until some is given back
  size_t refused_results_ = SIZE_MAX;  // nor of so many with room for a run beside it
  Traffic traffic_;
};

}  // namespace vta

#endif  // VTA_RUN_H_
