// What a thread is busy with, so that a foreign exception, or a signal, ends in one clear line.
#ifndef MODEL_STAGE_H_
#define MODEL_STAGE_H_

#include <string>
#include <string_view>

#include "fault.h"

namespace edge {

struct Stage {
  ExitCode code;
  std::string doing;  // a phrase: "loading the library"
  std::string file;
};

// The step in progress: what its failure is, what it does, and with what.
void EnterStage(ExitCode code, std::string_view doing, std::string_view file);
const Stage& CurrentStage();

// Called at each step of any thread; set it before there are others. For programs that catch
// signals.
extern void (*on_stage)(const Stage& stage);

// As one line of printable text. Control characters come from damaged files and from messages of
// several lines.
std::string OneLine(const std::string& text);

}  // namespace edge

#endif  // MODEL_STAGE_H_
