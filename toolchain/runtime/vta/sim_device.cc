// See sim_device.h.
#include "sim_device.h"

#include <algorithm>
#include <cstdlib>

#include "fault.h"

namespace vta {
namespace {

constexpr uint64_t kFirstPhysical = uint64_t{1} << 28;
constexpr uint64_t kPhysicalEnd = uint64_t{1} << 32;  // what the registers of a board can name

}  // namespace

SimDevice::SimDevice(const Encoding& encoding) : taken_(kPhysicalEnd - kFirstPhysical) {
  char error[512] = "";
  simulator_.reset(vta_simulator_create(&encoding.logs, encoding.revision, error, sizeof(error)));
  if (simulator_ == nullptr) Fail(error);
}

SimDevice::~SimDevice() {
  for (const DmaBuffer& buffer : buffers_) free(buffer.data);
}

DmaBuffer SimDevice::Allocate(size_t bytes) {
  const std::optional<uint64_t> place = taken_.Take(bytes);
  const size_t size = place ? static_cast<size_t>(ToPages(std::max<size_t>(bytes, 1))) : 0;
  void* data = nullptr;
  if (!place || posix_memalign(&data, kPage, size) != 0) {
    if (place) taken_.Give(*place);
    Fail("the simulator has no memory for a buffer of " + std::to_string(bytes) + " bytes");
  }
  buffers_.push_back({static_cast<uint8_t*>(data), kFirstPhysical + *place, size});
  return buffers_.back();
}

void SimDevice::Free(const DmaBuffer& buffer) {
  const auto same = [&](const DmaBuffer& one) { return one.data == buffer.data; };
  buffers_.erase(std::remove_if(buffers_.begin(), buffers_.end(), same), buffers_.end());
  taken_.Give(buffer.physical - kFirstPhysical);
  free(buffer.data);
}

void SimDevice::MapBuffers(uint64_t base) {
  vta_simulator_unmap_all(simulator_.get());
  for (const DmaBuffer& buffer : buffers_) {
    vta_simulator_map(simulator_.get(), buffer.physical, buffer.data, buffer.size, 1);
    // The simulator has no base registers: what is there is seen at its distance from them too.
    if (base == 0 || buffer.physical < base) continue;
    vta_simulator_map(simulator_.get(), buffer.physical - base, buffer.data, buffer.size, 1);
  }
}

void SimDevice::Run(const Program& program) {
  MapBuffers(program.base);
  vta_options options = {};
  options.policy = VTA_TIMED;
  options.profile = VTA_HLS_PYNQ;
  options.compute = 1;
  vta_statistics statistics = {};
  char error[512] = "";
  if (vta_simulator_run(simulator_.get(), program.instructions, program.count, &options,
                        &statistics, error, sizeof(error)) != 0) {
    Fail("the simulator: " + std::string(error));
  }
}

}  // namespace vta
