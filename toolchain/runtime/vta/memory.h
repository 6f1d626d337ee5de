// The two sides of every transfer: DRAM, which is the host's memory, and the SRAM of the machine.
#ifndef VTA_MEMORY_H_
#define VTA_MEMORY_H_

#include <cstdint>
#include <map>
#include <vector>

#include "config.h"

namespace vta {

// What was mapped, by physical address.
class Dram {
 public:
  // Returns false where the range is empty, ends above 2^64 or overlaps another.
  bool Map(uint64_t physical, void* host, uint64_t bytes, bool writable);
  void UnmapAll() { regions_.clear(); }

  // The host's address of `bytes` bytes, all in one mapping. Throw Fault.
  const uint8_t* Read(uint64_t physical, uint64_t bytes) const;
  uint8_t* Write(uint64_t physical, uint64_t bytes) const;

 private:
  struct Region {
    uint64_t bytes;
    uint8_t* host;
    bool writable;
  };

  uint8_t* Find(uint64_t physical, uint64_t bytes, bool writes) const;

  std::map<uint64_t, Region> regions_;  // by first address
};

// The memories. A weight element is kept as its products need it: 16 bits per weight, in the order
// (in / 2, out, in % 2).
class Sram {
 public:
  explicit Sram(const Config& config);

  // Fills all of it with a pattern that depends on the place.
  void Poison();
  // Copies elements from DRAM into any memory but OUT.
  void Load(Memory memory, uint32_t index, const uint8_t* from, uint32_t count);
  void Zero(Memory memory, uint32_t index, uint32_t count);

  std::vector<uint32_t> uop;
  std::vector<int16_t> wgt;
  std::vector<int8_t> inp;
  std::vector<int32_t> acc;
  std::vector<int8_t> out;

 private:
  void LoadWeights(uint32_t index, const uint8_t* from, uint32_t count);

  const Config config_;
};

}  // namespace vta

#endif  // VTA_MEMORY_H_
