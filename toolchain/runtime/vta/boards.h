// The boards whose FPGA runs VTA.
#ifndef VTA_BOARDS_H_
#define VTA_BOARDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "system.h"

namespace vta {

struct ZynqBoard {
  std::string name;
  std::vector<std::string> parts;  // one of which a bitstream's header has, by the board that it is for
  std::string compatible;  // as the device tree of every board with this FPGA's family has it
  uint64_t registers = 0;  // where the blocks' registers begin
  // Whether the blocks' transfers pass the CPU's caches (ACP, with every AxCACHE bit set, as the
  // published bitstreams have it): each side sees at once what the other wrote.
  bool coherent = false;
};

bool IsZynqBoard(const std::string& name);

// Throws Fault where there is none of this name.
const ZynqBoard& BoardNamed(const std::string& name);

// The board that this program runs on, by its device tree: boards of one family are the same to it.
// Throws Fault where it is none of them.
const ZynqBoard& ThisBoard(const System& system);

}  // namespace vta

#endif  // VTA_BOARDS_H_
