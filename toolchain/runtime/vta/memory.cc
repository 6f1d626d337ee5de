// See memory.h.
#include "memory.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "fault.h"

namespace vta {
namespace {

std::string Address(uint64_t physical) {
  char text[19];
  snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(physical));
  return text;
}

// No two neighbours alike, and in every byte other bits: Knuth's multiplicative hash.
template <typename Number>
void Fill(std::vector<Number>* memory) {
  for (size_t i = 0; i < memory->size(); ++i) {
    const uint32_t hash = (static_cast<uint32_t>(i) + 1) * 2654435761u;
    (*memory)[i] = static_cast<Number>(hash >> (sizeof(Number) == 1 ? 24 : 0));
  }
}

size_t Elements(const Config& config, Memory memory, size_t numbers) {
  return config.Depth(memory) * numbers;
}

}  // namespace

bool Dram::Map(uint64_t physical, void* host, uint64_t bytes, bool writable) {
  if (bytes == 0 || physical + bytes < physical) return false;
  const auto next = regions_.lower_bound(physical);
  if (next != regions_.end() && next->first - physical < bytes) return false;
  if (next != regions_.begin()) {
    const auto& [first, region] = *std::prev(next);
    if (physical - first < region.bytes) return false;
  }
  regions_[physical] = {bytes, static_cast<uint8_t*>(host), writable};
  return true;
}

const uint8_t* Dram::Read(uint64_t physical, uint64_t bytes) const {
  return Find(physical, bytes, false);
}

uint8_t* Dram::Write(uint64_t physical, uint64_t bytes) const {
  return Find(physical, bytes, true);
}

uint8_t* Dram::Find(uint64_t physical, uint64_t bytes, bool writes) const {
  const auto next = regions_.upper_bound(physical);
  if (next != regions_.begin()) {
    const auto& [first, region] = *std::prev(next);
    const uint64_t offset = physical - first;
    if (offset < region.bytes && bytes <= region.bytes - offset) {
      if (!writes || region.writable) return region.host + static_cast<size_t>(offset);
      Fail("DRAM at " + Address(physical) + " may only be read");
    }
  }
  Fail("nothing is mapped to all of the " + std::to_string(bytes) + " bytes of DRAM at " +
       Address(physical));
}

Sram::Sram(const Config& config)
    : uop(config.Depth(kUop)),
      wgt(Elements(config, kWgt, config.Block() * config.Block())),
      inp(Elements(config, kInp, config.Batch() * config.Block())),
      acc(Elements(config, kAcc, config.Batch() * config.Block())),
      out(Elements(config, kOut, config.Batch() * config.Block())),
      config_(config) {
  Poison();
}

void Sram::Poison() {
  Fill(&uop);
  Fill(&inp);
  Fill(&acc);
  Fill(&out);
  for (size_t i = 0; i < wgt.size(); ++i) {
    wgt[i] = static_cast<int8_t>((static_cast<uint32_t>(i) + 1) * 2654435761u >> 24);
  }
}

void Sram::Load(Memory memory, uint32_t index, const uint8_t* from, uint32_t count) {
  if (memory == kWgt) return LoadWeights(index, from, count);
  const size_t bytes = config_.ElementBytes(memory);
  uint8_t* to = memory == kUop   ? reinterpret_cast<uint8_t*>(uop.data())
                : memory == kInp ? reinterpret_cast<uint8_t*>(inp.data())
                                 : reinterpret_cast<uint8_t*>(acc.data());
  std::memcpy(to + index * bytes, from, count * bytes);
}

void Sram::LoadWeights(uint32_t index, const uint8_t* from, uint32_t count) {
  const size_t block = config_.Block();
  const int8_t* weights = reinterpret_cast<const int8_t*>(from);
  int16_t* to = wgt.data() + index * block * block;
  for (uint32_t element = 0; element < count; ++element) {
    for (size_t row = 0; row < block; ++row) {
      for (size_t column = 0; column < block; ++column) {
        to[(column / 2 * block + row) * 2 + column % 2] = weights[row * block + column];
      }
    }
    weights += block * block;
    to += block * block;
  }
}

void Sram::Zero(Memory memory, uint32_t index, uint32_t count) {
  const size_t numbers = static_cast<size_t>(config_.Batch()) * config_.Block();
  if (memory == kInp) std::fill_n(inp.begin() + index * numbers, count * numbers, 0);
  if (memory == kAcc) std::fill_n(acc.begin() + index * numbers, count * numbers, 0);
}

}  // namespace vta
