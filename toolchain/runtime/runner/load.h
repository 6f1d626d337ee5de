// Other work on the device while a model is measured: processes of the same program, which never outlive it.
#ifndef RUNNER_LOAD_H_
#define RUNNER_LOAD_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace runner {

// `cpu` and `memory` have one process for each CPU that this process may use, `io` has a single one, which writes
// and syncs a file without a name in a folder.
class Load {
 public:
  // Starts the processes, which wait. This process may not have other threads yet. An unknown kind is kExitUsage; an
  // empty one is no load.
  Load(const std::string& kind, const std::string& folder);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  void Begin();
  // Throws if a process has ended, for example because the disk is full.
  void CheckRunning() const;
  int processes() const { return static_cast<int>(processes_.size()); }

 private:
  void Start(const std::string& folder);
  void End();

  const std::string kind_;
  std::vector<pid_t> processes_;
  int gate_[2] = {-1, -1};  // a pipe: the processes begin when its writing end is closed
};

}  // namespace runner

#endif  // RUNNER_LOAD_H_
