// See model.h.
#include "model.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "fault.h"

namespace vta_model {
namespace {

using vta::DmaBuffer;
using vta::Fail;

constexpr uint64_t kFetchBlock = 0x0000, kStoreBlock = 0x3000;
constexpr uint64_t kCountRegister = 0x0010, kAddressRegister = 0x0018, kDoneRegister = 0x2018;
constexpr uint64_t kBases[] = {0x1010, 0x1018, 0x2020, 0x2028, 0x3010};
constexpr std::chrono::microseconds kTakesBack(1);  // until `done` of the run before is taken back
constexpr size_t kModelPage = 4096;
constexpr uint32_t kIdleAndReady = 0x0c, kRunning = 0x81;

std::string Hex(uint64_t value) {
  char text[24];
  snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

bool IsRegister(uint64_t offset) {
  const bool control = offset <= kStoreBlock && offset % 0x1000 == 0;
  const bool base = std::find(std::begin(kBases), std::end(kBases), offset) != std::end(kBases);
  return control || base || offset == kCountRegister || offset == kAddressRegister ||
         offset == kDoneRegister;
}

uint64_t BlockOf(uint64_t register_) { return register_ / 0x1000 * 0x1000; }

}  // namespace

Blocks::Blocks(uint64_t registers, const vta::Encoding& silicon, const Faults& faults)
    : registers_(registers),
      isa_(vta::Config(silicon.logs), silicon.revision),
      faults_(faults),
      next_physical_(faults.physical) {
  char error[256] = "";
  simulator_ = vta_simulator_create(&silicon.logs, silicon.revision, error, sizeof(error));
  if (simulator_ == nullptr) Fail(error);
}

Blocks::~Blocks() {
  for (const Page& page : pages_) free(page.cpu.data);
  vta_simulator_destroy(simulator_);
}

uint32_t Blocks::Read(uint64_t physical) {
  const uint64_t offset = physical - registers_;
  if (!IsRegister(offset)) Fail("no register at " + Hex(physical));
  if (offset == kDoneRegister) return Done();
  if (offset % 0x1000 != 0) return values_[offset];
  const bool runs = restarting_.count(offset) != 0;
  return runs ? kRunning : kIdleAndReady;
}

void Blocks::Write(uint64_t physical, uint32_t value) {
  const uint64_t offset = physical - registers_;
  log_ += Hex(physical) + " = " + Hex(value) + "\n";
  if (!IsRegister(offset) || offset == kDoneRegister) {
    Fail("no register to write at " + Hex(physical));
  }
  if (offset % 0x1000 == 0) return StartBlock(offset, value);
  if (!started_.empty()) Fail("a register is written while blocks run");
  values_[offset] = value;
}

void Blocks::StartBlock(uint64_t offset, uint32_t value) {
  const uint32_t wanted = offset == kFetchBlock ? 0x01 : 0x81;
  if (value != wanted) Fail("block " + Hex(offset) + " is started with " + Hex(value));
  if (offset == kFetchBlock) {
    for (const uint64_t one : {kCountRegister, kAddressRegister}) {
      if (values_.count(one) == 0) Fail("started without " + Hex(one));
    }
    for (const uint64_t one : kBases) {
      if (values_.count(one) == 0) Fail("started without the base at " + Hex(one));
    }
  } else if (started_.count(kFetchBlock) == 0) {
    Fail("block " + Hex(offset) + " is started before the fetch block");
  }
  started_.insert(offset);
  if (offset != kFetchBlock && restarting_.insert(offset).second) {
    for (const uint64_t one : kBases) {
      if (BlockOf(one) == offset) latched_[one] = values_[one];
    }
  }
  if (started_.size() < 4) return;
  runs_ = true;
  begun_ = std::chrono::steady_clock::now();
}

void Blocks::MapPages(uint64_t base) {
  vta_simulator_unmap_all(simulator_);
  for (Page& page : pages_) {
    uint8_t* const seen = faults_.coherent ? page.cpu.data : page.dram.data();
    vta_simulator_map(simulator_, page.cpu.physical, seen, page.cpu.size, 1);
    if (base == 0 || page.cpu.physical < base) continue;
    vta_simulator_map(simulator_, page.cpu.physical - base, seen, page.cpu.size, 1);
  }
}

// A block that restarts by itself takes its base when a turn begins, which is when the one before ends:
// in its first turn of a program that is what the register held at the end of the program before.
void Blocks::CheckLatchedBases() const {
  const uint8_t* const bytes = ProgramBytes();
  std::set<uint64_t> turned;
  for (uint32_t i = 0; i < values_.at(kCountRegister); ++i) {
    vta::Instruction one;
    try {
      one = isa_.Decode(bytes + size_t{i} * vta::kInstructionBytes);
    } catch (const vta::Fault&) {
      return;  // the simulator says what is wrong with it
    }
    const uint64_t block = 0x1000 * (1 + vta::StageOf(one));
    if (!turned.insert(block).second) continue;
    const bool moves = (one.opcode == vta::kLoad || one.opcode == vta::kStore) && one.x_size != 0 &&
                       one.y_size != 0;
    if (!moves) continue;
    for (const auto& latched : latched_) {
      if (BlockOf(latched.first) != block || latched.second == values_.at(latched.first)) continue;
      Fail("block " + Hex(block) + " counts from the base of the program before");
    }
  }
}

const uint8_t* Blocks::ProgramBytes() const {
  const uint64_t address = values_.at(kAddressRegister);
  for (const Page& page : pages_) {
    if (address < page.cpu.physical || address >= page.cpu.physical + page.cpu.size) continue;
    const uint8_t* const seen = faults_.coherent ? page.cpu.data : page.dram.data();
    return seen + (address - page.cpu.physical);
  }
  Fail("no program at " + Hex(address));
}

void Blocks::RunProgram() {
  runs_ = false;
  const uint32_t base = values_[kBases[0]];
  for (const uint64_t one : kBases) {
    if (values_[one] != base) Fail("the model knows one base for all blocks");
  }
  CheckLatchedBases();
  for (const uint64_t one : kBases) latched_[one] = values_[one];
  MapPages(base);
  vta_options options = {};
  options.compute = 1;
  vta_statistics statistics = {};
  char error[512] = "";
  const int failed = vta_simulator_run(simulator_, values_[kAddressRegister],
                                       values_[kCountRegister], &options, &statistics, error,
                                       sizeof(error));
  // What the simulator refuses does anything on silicon: it must not look like success.
  if (failed != 0) log_ += "refused: " + std::string(error) + "\n";
  is_done_ = failed == 0 && !faults_.never_done;
  values_.clear();
  started_.clear();
}

uint32_t Blocks::Done() {
  const bool settled = std::chrono::steady_clock::now() - begun_ >= kTakesBack;
  if (runs_ && settled) RunProgram();
  return is_done_;
}

DmaBuffer Blocks::Allocate(size_t bytes) {
  const size_t size = (bytes + kModelPage - 1) / kModelPage * kModelPage;
  size_t used = size / kModelPage;
  for (const Page& page : pages_) used += page.cpu.size / kModelPage;
  if (used > faults_.pages) Fail("no memory: " + std::to_string(used) + " pages");
  void* data = nullptr;
  if (posix_memalign(&data, kModelPage, size) != 0) Fail("no memory");
  memset(data, 0xc5, size);
  pages_.push_back({{static_cast<uint8_t*>(data), next_physical_, size}, {}});
  next_physical_ += size;  // none comes twice, so that one that is kept too long shows
  pages_.back().dram.assign(size, 0xa3);
  log_ += "allocated " + std::to_string(size) + "\n";
  return pages_.back().cpu;
}

void Blocks::Free(const DmaBuffer& buffer) {
  log_ += "freed " + std::to_string(buffer.size) + "\n";
  const auto same = [&](const Page& one) { return one.cpu.data == buffer.data; };
  pages_.erase(std::remove_if(pages_.begin(), pages_.end(), same), pages_.end());
  free(buffer.data);
}

Blocks::Page& Blocks::PageOf(const DmaBuffer& buffer, size_t offset, size_t bytes) {
  for (Page& page : pages_) {
    if (page.cpu.data == buffer.data && offset + bytes <= page.cpu.size) return page;
  }
  Fail("no such buffer");
}

void Blocks::Flush(const DmaBuffer& buffer, size_t offset, size_t bytes) {
  Page& page = PageOf(buffer, offset, bytes);
  if (faults_.forgets_flush) return;
  log_ += "flushed " + std::to_string(offset) + " " + std::to_string(bytes) + "\n";
  memcpy(page.dram.data() + offset, page.cpu.data + offset, bytes);
}

void Blocks::Invalidate(const DmaBuffer& buffer, size_t offset, size_t bytes) {
  Page& page = PageOf(buffer, offset, bytes);
  if (faults_.forgets_invalidate) return;
  log_ += "invalidated " + std::to_string(offset) + " " + std::to_string(bytes) + "\n";
  memcpy(page.cpu.data + offset, page.dram.data() + offset, bytes);
}

}  // namespace vta_model
