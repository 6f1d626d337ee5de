// Bitstreams: reading their files, and programming the FPGA with one.
#ifndef VTA_BITSTREAM_H_
#define VTA_BITSTREAM_H_

#include <string>

#include "boards.h"
#include "system.h"

namespace vta {

struct Bitstream {
  std::string part;   // for example 7z020clg400; empty where the file does not tell
  std::string words;  // as the kernel takes them
};

// Where the bitstream of a configuration is: where the variable EDGE_VTA_BITSTREAM says, or else a
// file of its name in /lib/firmware/edge-toolchain. Throws Fault where there is neither.
std::string UsualBitstream(const System& system, const std::string& configuration);

// Reads a .bit file, which begins with a header, or a .bin file. Throws Fault where it is neither.
Bitstream ReadBitstream(const std::string& path);

// Refuses a bitstream for another FPGA, or for another configuration than `configuration` if the
// file's name tells one. Throws Fault.
void CheckBitstream(const Bitstream& bitstream, const std::string& path, const ZynqBoard& board,
                    const std::string& configuration);

// Programs the FPGA by the kernel's FPGA manager or, on old kernels, /dev/xdevcfg. Throws Fault
// where there is neither, or the FPGA does not work afterwards.
void ProgramFpga(const System& system, const Bitstream& bitstream);

}  // namespace vta

#endif  // VTA_BITSTREAM_H_
