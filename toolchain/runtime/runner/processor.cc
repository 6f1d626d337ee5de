// See processor.h.
#include "processor.h"

#include <tvm/runtime/device_api.h>

#include <string>

#include "../model/stage.h"

namespace runner {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;
using tvm::runtime::DeviceAttrKind;

constexpr size_t kLongestText = 200;

std::string TextOf(DLDevice device, DeviceAttrKind kind) {
  tvm::ffi::Any value;
  tvm::runtime::DeviceAPI::Get(device)->GetAttr(device, kind, &value);
  const auto text = value.as<String>();
  std::string told = text ? edge::OneLine(std::string(*text)).substr(0, kLongestText) : "";
  for (char& c : told) {
    if (static_cast<signed char>(c) < ' ') c = '?';  // drivers do not promise UTF-8
  }
  return told;
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

}  // namespace runner
