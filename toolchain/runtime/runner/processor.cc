// See processor.h.
#include "processor.h"

#include <tvm/ffi/function.h>
#include <tvm/runtime/device_api.h>

#include <string>

#include "../model/fault.h"
#include "../model/stage.h"

namespace runner {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;
using tvm::runtime::DeviceAttrKind;

constexpr size_t kLongestText = 200;

std::string Printable(const std::string& text) {
  std::string told = edge::OneLine(text).substr(0, kLongestText);
  for (char& c : told) {
    if (static_cast<signed char>(c) < ' ') c = '?';  // drivers do not promise UTF-8
  }
  return told;
}

std::string TextOf(DLDevice device, DeviceAttrKind kind) {
  tvm::ffi::Any value;
  tvm::runtime::DeviceAPI::Get(device)->GetAttr(device, kind, &value);
  const auto text = value.as<String>();
  return text ? Printable(std::string(*text)) : "";
}

String Said(const std::string& kind, const std::string& what) {
  const auto asked = tvm::ffi::Function::GetGlobal("edge_toolchain." + kind + "." + what);
  if (!asked) throw edge::Fault(edge::kExitUsage, "this runner does not know the " + what + " of " + kind);
  return Printable(std::string((*asked)(0).cast<String>()));
}

}  // namespace

tvm::ffi::json::Value ProcessorOf(DLDevice device) {
  if (device.device_type == kDLCPU) return nullptr;
  tvm::ffi::Any units;
  tvm::runtime::DeviceAPI::Get(device)->GetAttr(device, tvm::runtime::kMultiProcessorCount, &units);
  return json::Object{{String("name"), String(TextOf(device, tvm::runtime::kDeviceName))},
                      {String("driver"), String(TextOf(device, tvm::runtime::kDriverVersion))},
                      {String("version"), String(TextOf(device, tvm::runtime::kApiVersion))},
                      {String("units"), units.as<int64_t>().value_or(0)}};
}

std::string HalvesLine(const std::string& kind) {
  edge::EnterStage(edge::kExitLoad, "asking the device", "");
  json::Object found;
  for (const char* what : {"name", "float16_lacks", "half_sums_lacks"}) found.Set(String(what), Said(kind, what));
  return std::string(json::Stringify(found));
}

}  // namespace runner
