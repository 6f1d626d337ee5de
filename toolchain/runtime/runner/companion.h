// Another model that runs on the device while one is timed.
#ifndef RUNNER_COMPANION_H_
#define RUNNER_COMPANION_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "options.h"

namespace runner {

class Companion {
 public:
  // Starts a process, which opens the release of --beside, runs it once, and waits; nothing without the option. It
  // has as many CPUs as `cpus`: other ones if there are enough, else the same. This process may not have other
  // threads yet.
  Companion(const Options& options, const std::vector<int>& cpus);
  ~Companion();
  Companion(const Companion&) = delete;
  Companion& operator=(const Companion&) = delete;

  // Waits until that first run has ended, and lets the model run again and again. Throws what it reports.
  void Begin();

  // Ends the process. Throws what it reports if it has ended by itself.
  void End();

 private:
  [[noreturn]] void Fail(const std::string& text, int status);

  pid_t process_ = 0;          // 0: there is none
  int gate_[2] = {-1, -1};     // a pipe: the process begins when its writing end is closed
  int answers_[2] = {-1, -1};  // a pipe: a mark after the first run, and the process's errors
};

}  // namespace runner

#endif  // RUNNER_COMPANION_H_
