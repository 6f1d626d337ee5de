// The devices of this process by name, each opened when it is first needed.
#ifndef VTA_DEVICES_H_
#define VTA_DEVICES_H_

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "boards.h"
#include "pynq_device.h"
#include "run.h"
#include "self_test.h"
#include "stream.h"

namespace vta {

// All functions throw Fault, and any thread may call them: one is served at a time.
class Devices {
 public:
  // Opens the FPGA of a board: see OpenZynq, also for an empty name of a bitstream.
  using Opener = std::function<std::unique_ptr<Device>(
      const ZynqBoard& board, const std::string& bitstream, const std::string& configuration)>;

  Devices(vta_config configuration, Opener open)
      : configuration_(configuration), open_(std::move(open)) {}

  // Programs the FPGA of a board, and tests it.
  void Init(const ZynqBoard& board, const std::string& bitstream);

  // Says which configuration the FPGA's bitstream has, before it is programmed with it.
  void Reconfigure(const vta_config& configuration);

  // Says that tensors are constant: their copies may stay in a device's memory until what this
  // returns is released. Until then whoever calls it keeps them alive and as they are.
  uint64_t Hold(const std::vector<TensorBytes>& tensors);
  void Release(uint64_t held) noexcept;

  // Runs a stream, in base64, on a board, or on "sim", which is whatever machine the stream is for.
  // It is verified at its first run. Tensors of `stays`, a bit for each, are written and read by
  // streams alone, and may stay in the device's memory: see Accelerator::Run.
  void Run(const std::string& device, const std::string& stream,
           const std::vector<TensorBytes>& tensors, uint64_t stays = 0);

  SelfTestResult Test(const std::string& device);

  // What was copied on each device that was used, as JSON.
  std::string TrafficJson();

 private:
  struct Simulated {
    Encoding encoding;
    std::unique_ptr<Accelerator> accelerator;
  };

  // A stream as text, and what was made of it.
  struct Kept {
    std::string text;
    std::unique_ptr<LoadedStream> stream;
  };

  void Open(const ZynqBoard& board, const std::string& bitstream);
  Accelerator& Board(const std::string& name);
  Accelerator& Simulator(const Encoding& encoding);
  LoadedStream& Loaded(const std::string& text);
  void CheckEncoding(const Encoding& encoding) const;
  void CheckLost(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
                 const std::vector<bool>& stays);
  std::vector<uint64_t> NumbersOf(const LoadedStream& stream,
                                  const std::vector<TensorBytes>& tensors) const;

  std::mutex serving_;
  vta_config configuration_;
  Opener open_;
  std::vector<Simulated> simulated_;
  std::unique_ptr<Accelerator> board_;
  SelfTestResult tested_;
  Constants constants_;
  std::set<const void*> lost_;  // results that an FPGA's memory had when it was programmed again
  std::unordered_map<std::string, Kept> streams_;  // by the start of their texts
  size_t kept_bytes_ = 0;
};

// The configuration of the published bitstreams.
vta_config DefaultConfiguration();

}  // namespace vta

#endif  // VTA_DEVICES_H_
