// A bitstream for a Zynq's FPGA; what stands before a line's end is its file's name.
#include "vta/bitstream.h"

#include <algorithm>

#include "fuzz.h"
#include "vta/fault.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::File file;
  const std::string_view all = fuzz::Text(data, size);
  const size_t end = std::min(all.find('\n'), size);
  const size_t start = std::min(end + 1, size);
  const std::string& path = file.With(data + start, size - start);
  fuzz::Accepts<vta::Fault>([&] {
    const vta::Bitstream bitstream = vta::ReadBitstream(path);
    fuzz::Must(bitstream.words.size() % 4 == 0);
    const std::string name(all.substr(0, end));
    vta::CheckBitstream(bitstream, name, vta::BoardNamed("pynq-z1"), "1x16_i8w8a32_15_15_18_17");
  });
  return 0;
}
