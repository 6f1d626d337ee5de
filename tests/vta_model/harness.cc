// The driver over the model, and its parts over a folder that looks like a board's: a C ABI for the
// tests. Functions return 0, or 1 with a sentence in `error`.
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "bitstream.h"
#include "boards.h"
#include "buffers.h"
#include "devices.h"
#include "model.h"
#include "pynq_device.h"
#include "registers.h"
#include "system.h"

#define HARNESS_API extern "C" __attribute__((visibility("default")))

namespace {

constexpr size_t kErrorBytes = 2048;

struct Harness {
  Harness(const vta::ZynqBoard& on, uint32_t revision, const vta_model::Faults& faults)
      : board(on),
        blocks(board.registers, {vta::DefaultConfiguration(), revision}, faults),
        devices(vta::DefaultConfiguration(),
                [this](const vta::ZynqBoard& wanted, const std::string& bitstream,
                       const std::string& configuration) {
                  if (bitstream.empty()) vta::UsualBitstream(vta::System(), configuration);
                  return std::make_unique<vta::PynqDevice>(
                      wanted, std::make_unique<vta_model::BlockRegisters>(&blocks),
                      vta::OpenedMemory{std::make_unique<vta_model::BlockMemory>(&blocks), ""});
                }) {}

  const vta::ZynqBoard& board;
  vta_model::Blocks blocks;
  vta::Devices devices;
  std::string answer;
};

template <typename Function>
int Guarded(char* error, Function function) {
  try {
    function();
    return 0;
  } catch (const std::exception& fault) {
    snprintf(error, kErrorBytes, "%s", fault.what());
    return 1;
  }
}

}  // namespace

HARNESS_API Harness* harness_create(const char* board, uint32_t revision, int never_done,
                                    int forgets_flush, int forgets_invalidate, int coherent,
                                    int kernel_coherent, uint64_t physical, uint32_t pages) {
  vta_model::Faults faults;
  faults.never_done = never_done != 0;
  faults.forgets_flush = forgets_flush != 0;
  faults.forgets_invalidate = forgets_invalidate != 0;
  faults.coherent = coherent != 0;
  faults.kernel_coherent = kernel_coherent != 0;
  if (physical != 0) faults.physical = physical;
  if (pages != 0) faults.pages = pages;
  return new Harness(vta::BoardNamed(board), revision, faults);
}

HARNESS_API void harness_destroy(Harness* harness) { delete harness; }

HARNESS_API void harness_set_never_done(Harness* harness, int never_done) {
  harness->blocks.SetNeverDone(never_done != 0);
}

HARNESS_API int harness_init(Harness* harness, char* error) {
  return Guarded(error, [&] { harness->devices.Init(harness->board, "any.bit"); });
}

HARNESS_API int harness_run(Harness* harness, const char* device, const char* stream, void** data,
                            const uint64_t* bytes, uint32_t count, uint64_t stays, char* error) {
  return Guarded(error, [&] {
    std::vector<vta::TensorBytes> tensors;
    for (uint32_t i = 0; i < count; ++i) tensors.push_back({data[i], bytes[i]});
    harness->devices.Run(device, stream, tensors, stays);
  });
}

HARNESS_API uint64_t harness_hold(Harness* harness, void** data, const uint64_t* bytes,
                                  uint32_t count) {
  std::vector<vta::TensorBytes> tensors;
  for (uint32_t i = 0; i < count; ++i) tensors.push_back({data[i], bytes[i]});
  return harness->devices.Hold(tensors);
}

HARNESS_API void harness_release(Harness* harness, uint64_t held) {
  harness->devices.Release(held);
}

HARNESS_API int harness_traffic(Harness* harness, char* error) {
  return Guarded(error, [&] {
    snprintf(error, kErrorBytes, "%s", harness->devices.TrafficJson().c_str());
  });
}

// The result is in `error` where it is 0.
HARNESS_API int harness_self_test(Harness* harness, const char* device, char* error) {
  return Guarded(error, [&] {
    snprintf(error, kErrorBytes, "%s", harness->devices.Test(device).Json().c_str());
  });
}

HARNESS_API int harness_reconfigure(Harness* harness, const vta_config* configuration,
                                    char* error) {
  return Guarded(error, [&] { harness->devices.Reconfigure(*configuration); });
}

HARNESS_API const char* harness_log(Harness* harness) {
  harness->answer = harness->blocks.log();
  harness->blocks.ClearLog();
  return harness->answer.c_str();
}

HARNESS_API int harness_write(Harness* harness, uint64_t physical, uint32_t value, char* error) {
  return Guarded(error, [&] { harness->blocks.Write(physical, value); });
}

HARNESS_API int harness_open(const char* root, const char* cma, const char* xrt, const char* board,
                             const char* bitstream, char* error) {
  return Guarded(error, [&] {
    const std::string configuration = vta::Config(vta::DefaultConfiguration()).Name();
    vta::OpenZynq(vta::BoardNamed(board), {root, cma, xrt}, bitstream, configuration);
  });
}

// Writes `value` all over a buffer of such memory, flushes the second page and invalidates the first
// unless the kernel calls it coherent, and frees it. Where it begins is in `physical`, and in `error`
// which kind of memory it is, and why. Other buffers of that size come `before` it.
HARNESS_API int harness_memory(const char* root, const char* cma, const char* xrt, uint64_t bytes,
                               uint8_t value, uint32_t before, uint64_t* physical, char* error) {
  return Guarded(error, [&] {
    const vta::OpenedMemory opened = vta::OpenDmaMemory({root, cma, xrt});
    vta::DmaMemory* const memory = opened.memory.get();
    std::vector<vta::DmaBuffer> others;
    for (uint32_t i = 0; i < before; ++i) others.push_back(memory->Allocate(bytes));
    const vta::DmaBuffer buffer = memory->Allocate(bytes);
    *physical = buffer.physical;
    memset(buffer.data, value, buffer.size);
    if (!memory->Coherent(buffer)) {
      memory->Flush(buffer, 4096, 4096);
      memory->Invalidate(buffer, 0, 4096);
    }
    memory->Free(buffer);
    for (const vta::DmaBuffer& one : others) memory->Free(one);
    snprintf(error, kErrorBytes, "%s\n%s", memory->Name().c_str(), opened.why.c_str());
  });
}

HARNESS_API int harness_register(const char* path, uint64_t physical, uint32_t value,
                                 uint32_t* read, char* error) {
  return Guarded(error, [&] {
    vta::DevMem registers(path);
    *read = registers.Read(physical);
    registers.Write(physical, value);
  });
}
