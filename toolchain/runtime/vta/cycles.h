// How long instructions take. All of it is modelled; one profile follows published measurements.
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
// one DMA bus. A LOAD or STORE asks for the bus when it starts, is served in the order of asking,
// and then spends its latency, which overlaps with the others' transfers.
//
//               bus, for LOAD, STORE     latency of LOAD, STORE   GEMM               ALU
//   ideal       bytes / 8                0                        steps              2 * steps
//   hls-pynq    bytes / 8                32 + 8 * rows            12 + steps         12 + 2 * steps
//                                                                 + refills          + refills
//   pynq-z1     bytes / 4 + 56 * rows    as hls-pynq              as hls-pynq        as hls-pynq
//
// Steps are iter_out * iter_in * micro-ops. Bytes and rows are those in DRAM: padding takes no
// time. HLS pipelines the loop over micro-ops, and the two loops around it start that pipeline
// anew: a refill of 10 cycles for each of their iterations but the first is likely, not known.
// Everything else, and a GEMM without steps, takes 1 cycle.
//
// pynq-z1 also has 3200 cycles for the start of a program. Its three numbers are those with which
// ten convolutions take what was published for them in 2019, with the tiles of that publication;
// docs/vta.md has the table.
class CycleModel {
 public:
  // `profile` is a vta_profile. Throws Fault where there is none of that number.
  CycleModel(const Config& config, uint32_t profile);

  Cost Of(const Instruction& instruction) const;
  // What a program takes beside its instructions.
  uint64_t Start() const;
  // Bytes that an instruction moves between DRAM and SRAM, and its work: steps, or elements of its
  // tile.
  uint64_t Bytes(const Instruction& transfer) const;
  static uint64_t Work(const Instruction& instruction);
  // Multiply-adds of a GEMM; a reset has none.
  uint64_t Macs(const Instruction& gemm) const;

 private:
  struct Latencies {
    uint64_t start;
    uint64_t transfer;
    uint64_t row;
    uint64_t compute;
    uint64_t refill;
    uint64_t bus_bytes;  // per cycle
    uint64_t bus_row;
  };

  const Config config_;
  Latencies latencies_;
};

}  // namespace vta

#endif  // VTA_CYCLES_H_
