// See devices.h.
#include "devices.h"

#include <utility>

#include "base64.h"
#include "config.h"
#include "fault.h"
#include "sim_device.h"
#include "verify.h"

namespace vta {
namespace {

// With the stream's header in it, and so its checksum.
constexpr size_t kHeadCharacters = 64;
// A network has a few dozen streams; tuning sends thousands, each for a moment.
constexpr size_t kMostKeptBytes = size_t{64} << 20;

}  // namespace

vta_config DefaultConfiguration() { return {3, 3, 5, 0, 4, 15, 15, 18, 17}; }

void Devices::Init(const ZynqBoard& board, const std::string& bitstream) {
  const std::lock_guard<std::mutex> lock(serving_);
  Open(board, bitstream);
}

void Devices::Open(const ZynqBoard& board, const std::string& bitstream) {
  if (board_ != nullptr) {
    for (const void* one : board_->Staying()) lost_.insert(one);
  }
  board_.reset();  // which lets go of the FPGA
  auto opened = std::make_unique<Accelerator>(
      open_(board, bitstream, Config(configuration_).Name()));
  tested_ = SelfTest(opened.get(), configuration_);
  board_ = std::move(opened);
}

void Devices::Reconfigure(const vta_config& configuration) {
  const std::lock_guard<std::mutex> lock(serving_);
  const std::string wanted = Config(configuration).Name();
  if (board_ != nullptr && configuration != configuration_) {
    Fail("the FPGA was programmed with configuration " + tested_.configuration + ", not " + wanted +
         ": reconfigure before tvm.contrib.vta.init");
  }
  configuration_ = configuration;
}

Accelerator& Devices::Board(const std::string& name) {
  const ZynqBoard& board = BoardNamed(name);
  if (board_ == nullptr) Open(board, "");  // its usual bitstream
  const std::string opened = board_->device().Name();
  if (opened != name) Fail("this machine is no " + name + " but " + opened);
  return *board_;
}

Accelerator& Devices::Simulator(const Encoding& encoding) {
  for (Simulated& one : simulated_) {
    const bool same = one.encoding.revision == encoding.revision;
    if (same && one.encoding.logs == encoding.logs) return *one.accelerator;
  }
  auto accelerator = std::make_unique<Accelerator>(std::make_unique<SimDevice>(encoding));
  simulated_.push_back({encoding, std::move(accelerator)});
  return *simulated_.back().accelerator;
}

LoadedStream& Devices::Loaded(const std::string& text) {
  const std::string head = text.substr(0, kHeadCharacters);
  const auto found = streams_.find(head);
  if (found != streams_.end() && found->second.text == text) return *found->second.stream;
  const std::vector<uint8_t> bytes = FromBase64(text);
  auto stream = std::make_unique<LoadedStream>(Verify(ParseStream(bytes.data(), bytes.size())));
  if (kept_bytes_ + text.size() > kMostKeptBytes) {
    streams_.clear();
    kept_bytes_ = 0;
  }
  kept_bytes_ += text.size();
  Kept& kept = streams_[head];
  kept = {text, std::move(stream)};
  return *kept.stream;
}

void Devices::CheckEncoding(const Encoding& encoding) const {
  const std::string wanted = Config(encoding.logs).Name();
  if (wanted != tested_.configuration) {
    Fail("the stream is for configuration " + wanted + "; the FPGA has " + tested_.configuration);
  }
  if (encoding.revision != tested_.revision) {
    Fail("the stream is encoded for revision " + std::to_string(encoding.revision) +
         " of the instructions; the FPGA has revision " + std::to_string(tested_.revision) +
         ": compile for that one");
  }
}

uint64_t Devices::Hold(const std::vector<TensorBytes>& tensors) {
  const std::lock_guard<std::mutex> lock(serving_);
  return constants_.Hold(tensors);
}

void Devices::Release(uint64_t held) noexcept {
  const std::lock_guard<std::mutex> lock(serving_);
  const std::vector<uint64_t> gone = constants_.Release(held);
  for (const Simulated& one : simulated_) one.accelerator->Forget(gone);
  if (board_ != nullptr) board_->Forget(gone);
}

std::vector<uint64_t> Devices::NumbersOf(const LoadedStream& stream,
                                         const std::vector<TensorBytes>& tensors) const {
  std::vector<uint64_t> numbers;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool written = stream.verified().stream().buffers[i].written;
    numbers.push_back(written ? 0 : constants_.NumberOf(tensors[i]));
  }
  return numbers;
}

// A result that an FPGA's memory had is gone with it, and the caller's tensor never had it.
void Devices::CheckLost(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
                        const std::vector<bool>& stays) {
  for (size_t i = 0; i < tensors.size() && !lost_.empty(); ++i) {
    if (stream.verified().stream().buffers[i].written) {
      lost_.erase(tensors[i].data);
    } else if (stays[i] && lost_.count(tensors[i].data) != 0) {
      Fail("what is read was in the FPGA's memory when it was programmed again: run the model anew");
    }
  }
}

void Devices::Run(const std::string& device, const std::string& stream,
                  const std::vector<TensorBytes>& tensors, uint64_t stays) {
  const std::lock_guard<std::mutex> lock(serving_);
  LoadedStream& loaded = Loaded(stream);
  const Encoding& encoding = loaded.verified().stream().encoding;
  loaded.CheckTensors(tensors);
  const std::vector<uint64_t> constants = NumbersOf(loaded, tensors);
  std::vector<bool> staying;
  for (size_t i = 0; i < tensors.size(); ++i) staying.push_back(i < 64 && (stays >> i & 1) != 0);
  if (device == "sim") return Simulator(encoding).Run(loaded, tensors, constants, staying);
  Accelerator& board = Board(device);
  CheckEncoding(encoding);
  CheckLost(loaded, tensors, staying);
  board.Run(loaded, tensors, constants, staying);
}

std::string Devices::TrafficJson() {
  const std::lock_guard<std::mutex> lock(serving_);
  std::vector<Accelerator*> used;
  for (const Simulated& one : simulated_) used.push_back(one.accelerator.get());
  if (board_ != nullptr) used.push_back(board_.get());
  std::string text;
  for (Accelerator* one : used) {
    const Traffic& traffic = one->traffic();
    text += (text.empty() ? "" : ", ") + ("{\"device\": \"" + one->device().Name()) +
            "\", \"runs\": " + std::to_string(traffic.runs) +
            ", \"bytes_to_device\": " + std::to_string(traffic.to_device) +
            ", \"bytes_from_device\": " + std::to_string(traffic.from_device) +
            ", \"bytes_resident\": " + std::to_string(traffic.resident) + "}";
  }
  return "[" + text + "]";
}

SelfTestResult Devices::Test(const std::string& device) {
  const std::lock_guard<std::mutex> lock(serving_);
  if (device == "sim") {
    return SelfTest(&Simulator({configuration_, VTA_2020_12}), configuration_);
  }
  return SelfTest(&Board(device), configuration_);
}

}  // namespace vta
