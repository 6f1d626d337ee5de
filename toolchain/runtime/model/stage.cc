// See stage.h.
#include "stage.h"

namespace edge {
namespace {

constexpr size_t kLongest = 1000;

Stage& ThreadsStage() {
  thread_local Stage stage{kExitUsage, "starting", ""};
  return stage;
}

}  // namespace

void (*on_stage)(const Stage& stage) = nullptr;

void EnterStage(ExitCode code, std::string_view doing, std::string_view file) {
  Stage& stage = ThreadsStage();
  stage.code = code;
  // These keep their memory from one stage to the next, so that a run allocates none.
  stage.doing = doing;
  stage.file = file;
  if (on_stage != nullptr) on_stage(stage);
}

const Stage& CurrentStage() { return ThreadsStage(); }

std::string OneLine(const std::string& text) {
  std::string line;
  for (unsigned char c : text) {
    const bool blank = c <= ' ' || c == 127;
    if (blank && (line.empty() || line.back() == ' ')) continue;
    line.push_back(blank ? ' ' : static_cast<char>(c));
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  if (line.size() > kLongest) {
    size_t end = kLongest;
    while (end > 0 && (line[end] & 0xC0) == 0x80) --end;  // not within a UTF-8 character
    line = line.substr(0, end) + "...";
  }
  return line;
}

}  // namespace edge
