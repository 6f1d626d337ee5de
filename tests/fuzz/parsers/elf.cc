// A library before the dynamic loader gets it.
#include "fuzz.h"
#include "model/elf_check.h"
#include "model/fault.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::File file;
  const std::string& path = file.With(data, size);
  fuzz::Accepts<edge::Fault>([&] { edge::CheckLibraryFile(path); });
  return 0;
}
