// A safetensors file, each of whose tensors is loaded.
#include "model/safetensors.h"

#include "fuzz.h"
#include "model/fault.h"
#include "model/host_tensor.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::File file;
  const std::string& path = file.With(data, size);
  fuzz::Accepts<edge::Fault>([&] {
    const edge::SafetensorsFile tensors(path);
    for (const auto& [name, entry] : tensors.entries()) {
      const tvm::ffi::Tensor tensor = tensors.Load(name);
      const std::string_view loaded(edge::DataOf(tensor), edge::SizeOf(tensor));
      fuzz::Must(loaded == tensors.BytesOf(name));
    }
  });
  return 0;
}
