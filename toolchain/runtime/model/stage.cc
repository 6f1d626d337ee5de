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

void EnterStage(ExitCode code, const std::string& doing, const std::string& file) {
  Stage& stage = ThreadsStage();
  stage = {code, doing, file};
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
