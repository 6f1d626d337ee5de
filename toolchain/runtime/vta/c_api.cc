// The C ABI: see vta_sim.h.
#include <cstdio>
#include <exception>
#include <string>

#include "config.h"
#include "isa.h"
#include "simulator.h"
#include "vta_sim.h"

struct vta_simulator {
  vta::Simulator simulator;
};

namespace vta {
namespace {

void CopyText(const std::string& text, char* to, size_t size) {
  if (size != 0) snprintf(to, size, "%s", text.c_str());
}

// Returns 0, or 1 with an error where `call` throws: nothing may be thrown through C.
template <typename Call>
int Guarded(char* error, size_t error_size, Call call) {
  try {
    call();
    return 0;
  } catch (const std::exception& fault) {
    CopyText(fault.what(), error, error_size);
    return 1;
  }
}

}  // namespace
}  // namespace vta

vta_simulator* vta_simulator_create(const vta_config* config, uint32_t revision, char* error,
                                    size_t error_size) {
  vta_simulator* made = nullptr;
  vta::Guarded(error, error_size,
               [&] { made = new vta_simulator{vta::Simulator(*config, revision)}; });
  return made;
}

int vta_simulator_map(vta_simulator* simulator, uint64_t physical, void* host, uint64_t bytes,
                      int writable) {
  return simulator->simulator.dram().Map(physical, host, bytes, writable != 0) ? 0 : 1;
}

void vta_simulator_unmap_all(vta_simulator* simulator) {
  simulator->simulator.dram().UnmapAll();
}

int vta_simulator_run(vta_simulator* simulator, uint64_t instructions_physical, uint32_t count,
                      const vta_options* options, vta_statistics* statistics, char* error,
                      size_t error_size) {
  return vta::Guarded(error, error_size, [&] {
    *statistics = simulator->simulator.Run(instructions_physical, count, *options);
  });
}

void vta_simulator_reset(vta_simulator* simulator) { simulator->simulator.Reset(); }

void vta_simulator_destroy(vta_simulator* simulator) { delete simulator; }

int vta_instruction_text(const vta_config* config, uint32_t revision, const uint8_t* bytes,
                         char* text, size_t text_size, uint8_t* again, char* error,
                         size_t error_size) {
  return vta::Guarded(error, error_size, [&] {
    const vta::Isa isa(vta::Config(*config), revision);
    const vta::Instruction instruction = isa.Decode(bytes);
    vta::CopyText(isa.Text(instruction), text, text_size);
    isa.Encode(instruction, again);
  });
}
