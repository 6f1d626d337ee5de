// See sim_device.h.
#include "sim_device.h"

#include <algorithm>
#include <cstdlib>

#include "fault.h"

namespace vta {
namespace {

constexpr size_t kSimPage = 4096;
constexpr uint64_t kFirstPhysical = uint64_t{1} << 28;
constexpr uint64_t kPhysicalEnd = uint64_t{1} << 32;  // what the registers of a board can name

}  // namespace

SimDevice::SimDevice(const Encoding& encoding) : next_physical_(kFirstPhysical) {
  char error[512] = "";
  simulator_.reset(vta_simulator_create(&encoding.logs, encoding.revision, error, sizeof(error)));
  if (simulator_ == nullptr) Fail(error);
}

SimDevice::~SimDevice() {
  for (const DmaBuffer& buffer : buffers_) free(buffer.data);
}

DmaBuffer SimDevice::Allocate(size_t bytes) {
  const size_t size = (bytes + kSimPage - 1) / kSimPage * kSimPage;
  if (buffers_.empty()) next_physical_ = kFirstPhysical;
  void* data = nullptr;
  if (size < bytes || size > kPhysicalEnd - next_physical_ ||
      posix_memalign(&data, kSimPage, size) != 0) {
    Fail("the simulator has no memory for a buffer of " + std::to_string(bytes) + " bytes");
  }
  buffers_.push_back({static_cast<uint8_t*>(data), next_physical_, size});
  next_physical_ += size;
  return buffers_.back();
}

void SimDevice::Free(const DmaBuffer& buffer) {
  const auto same = [&](const DmaBuffer& one) { return one.data == buffer.data; };
  buffers_.erase(std::remove_if(buffers_.begin(), buffers_.end(), same), buffers_.end());
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
