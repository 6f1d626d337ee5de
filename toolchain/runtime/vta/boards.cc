// See boards.h.
#include "boards.h"

#include "fault.h"

namespace vta {
namespace {

const ZynqBoard kBoards[] = {
    {"pynq-z1", {"7z020"}, "xlnx,zynq-7000", 0x43c00000, true},
    {"ultra96", {"zu3eg", "zu7ev"}, "xlnx,zynqmp", 0xa0000000, false},
};

}  // namespace

bool IsZynqBoard(const std::string& name) {
  for (const ZynqBoard& board : kBoards) {
    if (board.name == name) return true;
  }
  return false;
}

const ZynqBoard& BoardNamed(const std::string& name) {
  std::string known = "sim";
  for (const ZynqBoard& board : kBoards) {
    if (board.name == name) return board;
    known += ", " + board.name;
  }
  Fail("there is no VTA device \"" + name + "\": " + known);
}

const ZynqBoard& ThisBoard(const System& system) {
  const std::string path = system.Path("/proc/device-tree/compatible");
  const std::string told = ReadText(path).value_or("");
  for (const ZynqBoard& board : kBoards) {
    if (told.find(board.compatible) != std::string::npos) return board;
  }
  Fail("this machine has no FPGA for VTA: " + path +
       (told.empty() ? " cannot be read" : " names neither Zynq-7000 nor Zynq UltraScale+"));
}

}  // namespace vta
