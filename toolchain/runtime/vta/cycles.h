// How long instructions take. All of it is modelled, none of it measured on an FPGA.
#ifndef VTA_CYCLES_H_
#define VTA_CYCLES_H_

#include <cstdint>

#include "config.h"
#include "isa.h"

namespace vta {

// What one instruction takes: the DMA bus for `bus` cycles, and its stage for `bus + own`, longer
// if it has to wait for the bus.
struct Cost {
  uint64_t own;
  uint64_t bus;
};

// Three stages, each with one instruction at a time, that wait for each other's tokens and share
// one DMA bus of 8 bytes per cycle. A LOAD or STORE asks for the bus when it starts, is served in
// the order of asking, and then spends its latency, which overlaps with the others' transfers.
//
//               LOAD, STORE (those that move data)   GEMM                       ALU
//   ideal       bytes / 8, at least 1                steps                      2 * steps
//   hls-pynq    32 + 8 * rows + bytes / 8            12 + steps + refills       12 + 2 * steps +
//                                                                               refills
//
// Steps are iter_out * iter_in * micro-ops. Bytes and rows are those in DRAM: padding takes no
// time. HLS pipelines the loop over micro-ops, and the two loops around it start that pipeline
// anew: a refill of 10 cycles for each of their iterations but the first is likely, not known.
// Everything else, and a GEMM without steps, takes 1 cycle.
class CycleModel {
 public:
  // `profile` is a vta_profile. Throws Fault where there is none of that number.
  CycleModel(const Config& config, uint32_t profile);

  Cost Of(const Instruction& instruction) const;
  // Bytes that an instruction moves between DRAM and SRAM, and its work: steps, or elements of its
  // tile.
  uint64_t Bytes(const Instruction& transfer) const;
  static uint64_t Work(const Instruction& instruction);
  // Multiply-adds of a GEMM; a reset has none.
  uint64_t Macs(const Instruction& gemm) const;

 private:
  struct Latencies {
    uint64_t transfer;
    uint64_t row;
    uint64_t compute;
    uint64_t refill;
  };

  const Config config_;
  Latencies latencies_;
};

}  // namespace vta

#endif  // VTA_CYCLES_H_
