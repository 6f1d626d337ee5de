/* The simulator of the VTA accelerator: a C ABI.
 *
 * It behaves as the FPGA does, with all of its restrictions, and refuses what the FPGA would do
 * wrong. Its cycles are modelled, not measured: see cycles.h. Functions that return an int return 0
 * where all went well; otherwise they write one sentence, cut to `error_size` with its final zero,
 * to `error`. A simulator may be used by one thread at a time. */
#ifndef VTA_SIM_H_
#define VTA_SIM_H_

#include <stddef.h>
#include <stdint.h>

#define VTA_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* log2 of widths in bits, of the tile's rows and columns, and of the bytes of each SRAM. */
typedef struct {
  uint8_t log_inp_width;
  uint8_t log_wgt_width;
  uint8_t log_acc_width;
  uint8_t log_batch;
  uint8_t log_block;
  uint8_t log_uop_buff_size;
  uint8_t log_inp_buff_size;
  uint8_t log_wgt_buff_size;
  uint8_t log_acc_buff_size;
} vta_config;

/* The encoding before and since 2020-12-11. */
typedef enum { VTA_2020_07 = 1, VTA_2020_12 = 2 } vta_revision;

/* Which of the stages that could go on does so next. A program that lacks a token goes wrong under
 * at least one of them. Only VTA_TIMED has cycles. */
typedef enum { VTA_TIMED, VTA_LOAD_FIRST, VTA_STORE_FIRST, VTA_RANDOM } vta_policy;

/* The cycle model: see cycles.h. */
typedef enum { VTA_IDEAL, VTA_HLS_PYNQ, VTA_PYNQ_Z1 } vta_profile;

typedef struct {
  uint32_t policy;      /* vta_policy */
  uint32_t profile;     /* vta_profile */
  uint64_t seed;        /* of VTA_RANDOM */
  uint32_t compute;     /* 0: only time passes, and neither DRAM nor uops are looked at */
  uint32_t reserved;    /* 0 */
  uint64_t most_cycles; /* most steps of GEMM and ALU plus DMA elements; 0: 2^30 */
} vta_options;

/* Cycles and stalls are 0 under every policy but VTA_TIMED. */
typedef struct {
  uint64_t cycles;
  uint64_t instructions;
  uint64_t gemm_cycles;
  uint64_t alu_cycles;
  uint64_t macs; /* multiply-adds of GEMM without reset */
  uint64_t load_bytes;
  uint64_t store_bytes;
  uint64_t load_stalls; /* cycles that the stage waited for tokens */
  uint64_t compute_stalls;
  uint64_t store_stalls;
  uint64_t bus_stalls; /* cycles that all stages together waited for the DMA bus */
  uint64_t bus_cycles; /* cycles that the bus was busy */
  uint64_t loads;      /* instructions by opcode, those that do nothing but pass tokens included */
  uint64_t stores;
  uint64_t gemms;
  uint64_t alus;
} vta_statistics;

typedef struct vta_simulator vta_simulator;

/* Returns NULL where there is no such machine. The SRAM is as vta_simulator_reset leaves it. */
VTA_API vta_simulator* vta_simulator_create(const vta_config* config, uint32_t revision,
                                            char* error, size_t error_size);

/* Puts host memory at a physical address. DRAM is what was mapped; anything else is a fault.
 * Returns 1 where the range is empty, ends above 2^64 or overlaps another. */
VTA_API int vta_simulator_map(vta_simulator* simulator, uint64_t physical, void* host,
                              uint64_t bytes, int writable);

VTA_API void vta_simulator_unmap_all(vta_simulator* simulator);

/* Runs `count` instructions, of which the last is the only FINISH. SRAM keeps its contents between
 * runs, as on the FPGA; the queues do not, so that a simulator is of use after a fault too. */
VTA_API int vta_simulator_run(vta_simulator* simulator, uint64_t instructions_physical,
                              uint32_t count, const vta_options* options,
                              vta_statistics* statistics, char* error, size_t error_size);

/* Fills all SRAM with a pattern: what was never written must not look like zero. */
VTA_API void vta_simulator_reset(vta_simulator* simulator);

VTA_API void vta_simulator_destroy(vta_simulator* simulator);

/* Describes one instruction of 16 bytes in words, NAME field=value ..., fields of 0 left out, and
 * encodes it again: `again` must come out as `bytes`. */
VTA_API int vta_instruction_text(const vta_config* config, uint32_t revision,
                                 const uint8_t* bytes, char* text, size_t text_size,
                                 uint8_t* again, char* error, size_t error_size);

#ifdef __cplusplus
}
#endif

#endif /* VTA_SIM_H_ */
