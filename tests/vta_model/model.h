// The four blocks of VTA on a Zynq as their driver meets them: registers, and memory behind caches.
#ifndef VTA_MODEL_H_
#define VTA_MODEL_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "isa.h"
#include "queues.h"
#include "buffers.h"
#include "registers.h"
#include "stream.h"

namespace vta_model {

// What is wrong with this FPGA, or with who uses it.
struct Faults {
  bool never_done = false;          // the last instruction is never reached
  bool forgets_flush = false;       // what the CPU wrote stays in its caches
  bool forgets_invalidate = false;  // what the FPGA wrote is not seen
  bool coherent = false;            // of the wiring: the FPGA reads and writes past the CPU's caches
  bool kernel_coherent = false;     // the kernel was told so
  uint64_t physical = 0x18000000;   // of the first buffer
  size_t pages = SIZE_MAX;          // that buffers may have together
};

class Blocks {
 public:
  Blocks(uint64_t registers, const vta::Encoding& silicon, const Faults& faults);
  ~Blocks();

  // Throw vta::Fault on what the blocks do not have or must not see.
  uint32_t Read(uint64_t physical);
  void Write(uint64_t physical, uint32_t value);

  vta::DmaBuffer Allocate(size_t bytes);
  void Free(const vta::DmaBuffer& buffer);
  bool Coherent() const { return faults_.kernel_coherent; }
  void Flush(const vta::DmaBuffer& buffer, size_t offset, size_t bytes);
  void Invalidate(const vta::DmaBuffer& buffer, size_t offset, size_t bytes);

  void SetNeverDone(bool never_done) { faults_.never_done = never_done; }

  // One line for each register that was written and each part of memory that was flushed or
  // invalidated, in their order.
  const std::string& log() const { return log_; }
  void ClearLog() { log_.clear(); }

 private:
  // A buffer has two sides: the CPU's, which is its caches, and the DRAM behind them. Nothing goes
  // from one to the other by itself, which is the worst that caches may do. A coherent FPGA is on the
  // CPU's side, any other on the DRAM's.
  struct Page {
    vta::DmaBuffer cpu;
    std::vector<uint8_t> dram;
  };

  Page& PageOf(const vta::DmaBuffer& buffer, size_t offset, size_t bytes);
  void StartBlock(uint64_t offset, uint32_t value);
  void RunProgram();
  void CheckLatchedBases() const;
  const uint8_t* ProgramBytes() const;
  uint32_t Done();
  void MapPages(uint64_t base);

  uint64_t registers_;
  vta::Isa isa_;
  Faults faults_;
  vta_simulator* simulator_;
  std::map<uint64_t, uint32_t> values_;  // since the last run, by offset
  std::set<uint64_t> started_;           // blocks
  std::set<uint64_t> restarting_;        // blocks, ever
  std::map<uint64_t, uint32_t> latched_;  // the base of a block's next turn, by its register
  bool runs_ = false;     // a program that takes until `done` is looked at, late enough
  bool is_done_ = false;  // or was, when the program before ended
  std::chrono::steady_clock::time_point begun_;
  std::vector<Page> pages_;
  uint64_t next_physical_;
  std::string log_;
};

// The two sides that the driver takes.
class BlockRegisters final : public vta::Registers {
 public:
  explicit BlockRegisters(Blocks* blocks) : blocks_(blocks) {}
  uint32_t Read(uint64_t physical) override { return blocks_->Read(physical); }
  void Write(uint64_t physical, uint32_t value) override { blocks_->Write(physical, value); }

 private:
  Blocks* blocks_;
};

class BlockMemory final : public vta::DmaMemory {
 public:
  explicit BlockMemory(Blocks* blocks) : blocks_(blocks) {}
  std::string Name() const override { return "the model's"; }
  vta::DmaBuffer Allocate(size_t bytes) override { return blocks_->Allocate(bytes); }
  void Free(const vta::DmaBuffer& buffer) override { blocks_->Free(buffer); }
  bool Coherent(const vta::DmaBuffer&) const override { return blocks_->Coherent(); }
  void Flush(const vta::DmaBuffer& buffer, size_t offset, size_t bytes) override {
    blocks_->Flush(buffer, offset, bytes);
  }
  void Invalidate(const vta::DmaBuffer& buffer, size_t offset, size_t bytes) override {
    blocks_->Invalidate(buffer, offset, bytes);
  }

 private:
  Blocks* blocks_;
};

}  // namespace vta_model

#endif  // VTA_MODEL_H_
