// See copies.h.
#include "copies.h"

#include <tvm/ffi/function.h>

#include <string>

#include "../model/json.h"

namespace runner {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

namespace {

int64_t NumberIn(const json::Object& object, const char* key) {
  return object[String(key)].cast<int64_t>();
}

}  // namespace

Copies CopiesNow() {
  Copies copies;
  const auto traffic = tvm::ffi::Function::GetGlobal("edge_toolchain.vta.traffic");
  if (!traffic) return copies;
  const std::string text = (*traffic)().cast<String>();
  const json::Array devices = edge::ParseJson(text, "").cast<json::Array>();
  for (const auto& one : devices) {
    const auto device = one.cast<json::Object>();
    copies.kernels += NumberIn(device, "runs");
    copies.to_device += NumberIn(device, "bytes_to_device");
    copies.from_device += NumberIn(device, "bytes_from_device");
    copies.resident += NumberIn(device, "bytes_resident");
  }
  return copies;
}

json::Value CopiesPerRun(const Copies& before, const Copies& after, int64_t runs) {
  if (runs == 0 || after.kernels == before.kernels) return nullptr;
  return json::Object{{String("to_device"), (after.to_device - before.to_device) / runs},
                      {String("from_device"), (after.from_device - before.from_device) / runs},
                      {String("resident"), after.resident}};
}

}  // namespace runner
