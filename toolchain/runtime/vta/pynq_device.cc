// See pynq_device.h.
#include "pynq_device.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "bitstream.h"
#include "fault.h"

namespace vta {
namespace {

constexpr uint64_t kAddressEnd = uint64_t{1} << 32;

// Distances from the first block's registers.
enum Block : uint64_t { kFetch = 0x0000, kLoader = 0x1000, kCompute = 0x2000, kStorer = 0x3000 };

constexpr uint64_t kControl = 0x00;
constexpr uint64_t kFetchCount = 0x10;
constexpr uint64_t kFetchAddress = 0x18;
constexpr uint64_t kLoadInpBase = 0x10;
constexpr uint64_t kLoadWgtBase = 0x18;
constexpr uint64_t kComputeDone = 0x18;
constexpr uint64_t kComputeUopBase = 0x20;
constexpr uint64_t kComputeAccBase = 0x28;
constexpr uint64_t kStoreOutBase = 0x10;

constexpr uint32_t kStart = 0x01;
constexpr uint32_t kStartAndRestart = 0x81;

// Until the compute block has taken back the `done` of the program before.
constexpr std::chrono::microseconds kSettle(1);

std::string ControlText(uint32_t control) {
  static const std::pair<uint32_t, const char*> bits[] = {
      {0x01, "start"}, {0x02, "done"}, {0x04, "idle"}, {0x08, "ready"}, {0x80, "auto-restart"}};
  char number[16];
  snprintf(number, sizeof(number), "0x%02x", static_cast<unsigned>(control));
  std::string text = number;
  for (const auto& bit : bits) {
    if ((control & bit.first) != 0) text += std::string(" ") + bit.second;
  }
  return text;
}

void CheckAddress(const char* what, uint64_t physical) {
  if (physical < kAddressEnd) return;
  Fail(std::string("the ") + what + " at " + std::to_string(physical) +
       " is above 4 GiB, where the FPGA cannot reach");
}

}  // namespace

PynqDevice::PynqDevice(const ZynqBoard& board, std::unique_ptr<Registers> registers,
                       OpenedMemory memory)
    : board_(board),
      registers_(std::move(registers)),
      memory_(std::move(memory.memory)),
      why_memory_(std::move(memory.why)) {}

DmaBuffer PynqDevice::Allocate(size_t bytes) {
  const DmaBuffer buffer = memory_->Allocate(bytes);
  if (buffer.physical + buffer.size <= kAddressEnd) return buffer;
  memory_->Free(buffer);
  CheckAddress("end of a buffer", buffer.physical + buffer.size);
  return buffer;
}

void PynqDevice::Free(const DmaBuffer& buffer) {
  if (hung_.empty()) memory_->Free(buffer);  // the FPGA may still write there
}

void PynqDevice::Flush(const DmaBuffer& buffer, size_t offset, size_t bytes) {
  if (!memory_->Coherent(buffer)) memory_->Flush(buffer, offset, bytes);
}

void PynqDevice::Invalidate(const DmaBuffer& buffer, size_t offset, size_t bytes) {
  // To invalidate is to throw away: of a coherent FPGA, what it wrote is in the CPU's caches, and
  // may be nowhere else yet.
  if (board_.coherent || memory_->Coherent(buffer)) return;
  memory_->Invalidate(buffer, offset, bytes);
}

void PynqDevice::Start(const Program& program) {
  const auto write = [this](uint64_t block, uint64_t offset, uint64_t value) {
    registers_->Write(board_.registers + block + offset, static_cast<uint32_t>(value));
  };
  write(kFetch, kFetchCount, program.count);
  write(kFetch, kFetchAddress, program.instructions);
  write(kLoader, kLoadInpBase, program.base);
  write(kLoader, kLoadWgtBase, program.base);
  write(kCompute, kComputeUopBase, program.base);
  write(kCompute, kComputeAccBase, program.base);
  write(kStorer, kStoreOutBase, program.base);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // memory before it is looked at
  write(kFetch, kControl, kStart);
  write(kLoader, kControl, kStartAndRestart);
  write(kCompute, kControl, kStartAndRestart);
  write(kStorer, kControl, kStartAndRestart);
}

bool PynqDevice::IsDone() const {
  return registers_->Read(board_.registers + kCompute + kComputeDone) == 1;
}

std::string PynqDevice::State() const {
  static const std::pair<Block, const char*> blocks[] = {
      {kFetch, "fetch"}, {kLoader, "load"}, {kCompute, "compute"}, {kStorer, "store"}};
  std::string text;
  for (const auto& block : blocks) {
    const uint32_t control = registers_->Read(board_.registers + block.first + kControl);
    text += (text.empty() ? "" : ", ") + std::string(block.second) + " " + ControlText(control);
  }
  return text;
}

void PynqDevice::Run(const Program& program) {
  using Clock = std::chrono::steady_clock;
  if (!hung_.empty()) Fail("the FPGA hangs since an earlier program: " + hung_);
  CheckAddress("program", program.instructions);
  CheckAddress("base", program.base);
  Start(program);
  const auto end = Clock::now() + std::chrono::duration<double>(program.timeout_s);
  do {
    std::this_thread::sleep_for(kSettle);
    if (IsDone()) return;
  } while (Clock::now() < end);
  char seconds[32];
  snprintf(seconds, sizeof(seconds), "%.3g", program.timeout_s);
  hung_ = std::string("it did not finish within ") + seconds + " s; control registers: " + State() +
          "; program the FPGA again (tvm.contrib.vta.init)";
  Fail("the FPGA hangs: " + hung_);
}

std::unique_ptr<Device> OpenZynq(const ZynqBoard& board, const System& system,
                                 const std::string& bitstream, const std::string& configuration) {
  const ZynqBoard& here = ThisBoard(system);
  if (here.name != board.name) Fail("this machine is no " + board.name + " but " + here.name);
  const std::string path =
      bitstream.empty() ? UsualBitstream(system, configuration) : bitstream;
  const Bitstream read = ReadBitstream(path);
  CheckBitstream(read, path, board, configuration);
  // First, as it holds the lock. Nothing is read from it before the FPGA was programmed: without
  // our blocks behind them, these addresses can stop the CPU.
  auto registers = std::make_unique<DevMem>(system.Path("/dev/mem"));
  ProgramFpga(system, read);
  return std::make_unique<PynqDevice>(board, std::move(registers), OpenDmaMemory(system));
}

}  // namespace vta
