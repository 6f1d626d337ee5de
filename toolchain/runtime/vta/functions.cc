// What TVM calls by name: a kernel its stream, and a client the board.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../model/fault.h"
#include "../model/json.h"
#include "boards.h"
#include "devices.h"
#include "fault.h"
#include "pynq_device.h"

namespace vta {
namespace {

using tvm::ffi::AnyView;
using tvm::ffi::PackedArgs;
using tvm::ffi::String;
namespace json = tvm::ffi::json;

constexpr size_t kMostJson = 4096;  // a configuration has a few hundred bytes

Devices& TheDevices() {
  static auto* devices = new Devices(  // like TVM's own, never destroyed
      DefaultConfiguration(), [](const ZynqBoard& board, const std::string& bitstream,
                                 const std::string& configuration) {
        return OpenZynq(board, System(), bitstream, configuration);
      });
  return *devices;
}

// Makes TVM's errors of ours.
template <typename Function>
auto Guarded(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const Fault& fault) {
    TVM_FFI_THROW(RuntimeError) << "VTA: " << fault.what();
    TVM_FFI_UNREACHABLE();
  }
}

TensorBytes BytesOf(const AnyView& argument, int number) {
  const auto tensor = argument.try_cast<DLTensor*>();
  if (!tensor) Fail("argument " + std::to_string(number) + " is not a tensor");
  const DLTensor& one = **tensor;
  if (one.device.device_type != kDLCPU || !tvm::ffi::IsContiguous(one)) {
    Fail("argument " + std::to_string(number) + " is not a contiguous tensor in the CPU's memory");
  }
  return {static_cast<char*>(one.data) + one.byte_offset, tvm::ffi::GetDataSize(one)};
}

// run(device, stream, tensor...), or run(device, stream, stays, tensor...)
void RunStream(PackedArgs arguments, tvm::ffi::Any*) {
  if (arguments.size() < 2) Fail("a device, a stream and tensors are wanted");
  const auto stays = arguments.size() > 2 ? arguments[2].as<int64_t>() : std::nullopt;
  std::vector<TensorBytes> tensors;
  for (int i = stays ? 3 : 2; i < arguments.size(); ++i) tensors.push_back(BytesOf(arguments[i], i));
  TheDevices().Run(arguments[0].cast<String>(), arguments[1].cast<String>(), tensors,
                   static_cast<uint64_t>(stays.value_or(0)));
}

// Tensors that are held for as long as this lives.
class HeldTensors {
 public:
  explicit HeldTensors(std::vector<tvm::ffi::Tensor> tensors) : tensors_(std::move(tensors)) {
    std::vector<TensorBytes> bytes;
    for (const tvm::ffi::Tensor& one : tensors_) bytes.push_back(BytesOf(one, 0));
    number_ = TheDevices().Hold(bytes);
  }
  ~HeldTensors() { TheDevices().Release(number_); }
  HeldTensors(const HeldTensors&) = delete;
  HeldTensors& operator=(const HeldTensors&) = delete;

 private:
  std::vector<tvm::ffi::Tensor> tensors_;
  uint64_t number_ = 0;
};

// Returns what holds them: a function that says how many these are.
tvm::ffi::Function Hold(const tvm::ffi::Array<tvm::ffi::Tensor>& tensors) {
  const int64_t count = static_cast<int64_t>(tensors.size());
  auto held = std::make_shared<HeldTensors>(
      std::vector<tvm::ffi::Tensor>(tensors.begin(), tensors.end()));
  return tvm::ffi::Function::FromTyped([held, count]() { return count; });
}

// A client names what it has uploaded as the board's server knows it.
std::string Uploaded(const String& name) {
  const auto find = tvm::ffi::Function::GetGlobal("tvm.rpc.server.workpath");
  const bool absolute = name.size() != 0 && name.at(0) == '/';
  return absolute || !find ? std::string(name) : std::string((*find)(name).cast<String>());
}

const std::map<std::string, uint8_t vta_config::*>& ConfigurationKeys() {
  static const std::map<std::string, uint8_t vta_config::*> keys = {
      {"LOG_INP_WIDTH", &vta_config::log_inp_width},
      {"LOG_WGT_WIDTH", &vta_config::log_wgt_width},
      {"LOG_ACC_WIDTH", &vta_config::log_acc_width},
      {"LOG_BATCH", &vta_config::log_batch},
      {"LOG_BLOCK", &vta_config::log_block},
      {"LOG_UOP_BUFF_SIZE", &vta_config::log_uop_buff_size},
      {"LOG_INP_BUFF_SIZE", &vta_config::log_inp_buff_size},
      {"LOG_WGT_BUFF_SIZE", &vta_config::log_wgt_buff_size},
      {"LOG_ACC_BUFF_SIZE", &vta_config::log_acc_buff_size},
  };
  return keys;
}

// Says nothing that the others do not: what a stream needs follows from them.
bool IsRemark(const std::string& key) {
  return key == "TARGET" || key == "HW_VER" || key == "LOG_OUT_WIDTH" ||
         key == "LOG_OUT_BUFF_SIZE" || key == "LOG_BLOCK_IN" || key == "LOG_BLOCK_OUT";
}

// Nothing where it is none.
std::optional<json::Object> ParseObject(const std::string& text) {
  if (text.size() > kMostJson) return std::nullopt;
  try {
    return edge::ParseJson(text, "").as<json::Object>();
  } catch (const edge::Fault&) {
    return std::nullopt;
  }
}

vta_config Configuration(const std::string& text) {
  const std::optional<json::Object> object = ParseObject(text);
  if (!object) Fail("the configuration is no JSON object");
  vta_config logs = {};
  size_t found = 0;
  for (const auto& pair : *object) {
    const std::string key = pair.first.cast<String>();
    const auto member = ConfigurationKeys().find(key);
    if (member == ConfigurationKeys().end()) {
      if (!IsRemark(key)) Fail("the configuration has a key \"" + key + "\", which is unknown");
      continue;
    }
    const auto log = pair.second.as<int64_t>();
    if (!log || *log < 0 || *log > UINT8_MAX) Fail(key + " of the configuration is not a valid log2");
    logs.*member->second = static_cast<uint8_t>(*log);
    ++found;
  }
  if (found != ConfigurationKeys().size()) Fail("the configuration lacks keys");
  return logs;
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def_packed("edge_toolchain.vta.run",
                  [](PackedArgs arguments, tvm::ffi::Any* result) {
                    Guarded([&] { RunStream(arguments, result); });
                  })
      .def("edge_toolchain.vta.hold",
           [](tvm::ffi::Array<tvm::ffi::Tensor> tensors) {
             return Guarded([&] { return Hold(tensors); });
           })
      .def("edge_toolchain.vta.traffic",
           [] { return Guarded([] { return String(TheDevices().TrafficJson()); }); })
      .def("edge_toolchain.vta.self_test",
           [](String device) {
             return Guarded([&] { return String(TheDevices().Test(device).Json()); });
           })
      .def("tvm.contrib.vta.init",
           [](String bitstream) {
             Guarded([&] { TheDevices().Init(ThisBoard(System()), Uploaded(bitstream)); });
           })
      .def("tvm.contrib.vta.reconfig_runtime", [](String configuration) {
        Guarded([&] { TheDevices().Reconfigure(Configuration(configuration)); });
      });
}

}  // namespace vta
