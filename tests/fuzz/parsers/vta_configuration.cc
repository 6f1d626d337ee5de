// The configuration that a client tells a board's FPGA, as JSON.
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include "fuzz.h"
#include "vta/devices.h"

namespace {

tvm::ffi::Function Registered() {
  vta::DefaultConfiguration();  // or the linker leaves out what registers itself
  return tvm::ffi::Function::GetGlobalRequired("tvm.contrib.vta.reconfig_runtime");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tvm::ffi::Function tell = Registered();
  const tvm::ffi::String text(reinterpret_cast<const char*>(data), size);
  fuzz::Accepts<tvm::ffi::Error>([&] { tell(text); });
  return 0;
}
