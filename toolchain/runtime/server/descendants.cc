// See descendants.h.
#include "descendants.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "log.h"
#include "sockets.h"
#include "work_folder.h"

namespace board_server {
namespace {

constexpr int64_t kEndingMs = 5000;

// 0 if the process is gone by now. Its name, in parentheses, may be anything: what follows the last
// of them is its state and its parent.
pid_t ParentOf(const std::string& process) {
  const Descriptor file(open(("/proc/" + process + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  char text[512] = {};
  if (!file.open() || read(file.get(), text, sizeof(text) - 1) <= 0) return 0;
  const std::string line = text;
  const size_t name_end = line.rfind(')');
  char state = 0;
  int parent = 0;
  if (name_end == std::string::npos) return 0;
  const int read_count = sscanf(line.c_str() + name_end + 1, " %c %d", &state, &parent);
  return read_count == 2 ? parent : 0;
}

std::multimap<pid_t, pid_t> ChildrenOfAll() {
  std::vector<std::string> names;
  if (!ListNames("/proc", &names)) LogErrno("cannot look for what a session started", errno);
  std::multimap<pid_t, pid_t> children;
  for (const std::string& name : names) {
    if (!isdigit(static_cast<unsigned char>(name[0]))) continue;
    if (const pid_t parent = ParentOf(name)) children.emplace(parent, atoi(name.c_str()));
  }
  return children;
}

std::vector<pid_t> Descendants() {
  const std::multimap<pid_t, pid_t> children = ChildrenOfAll();
  std::vector<pid_t> found = {getpid()};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto range = children.equal_range(found[i]);
    for (auto one = range.first; one != range.second; ++one) found.push_back(one->second);
  }
  found.erase(found.begin());
  return found;
}

}  // namespace

void AdoptDescendants() {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0) return;
  LogErrno("what a session moves to the background may outlive it", errno);
}

void EndDescendants() {
  const int64_t give_up = Now() + kEndingMs;
  while (true) {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const std::vector<pid_t> left = Descendants();
    if (left.empty()) return;
    if (Now() >= give_up) {
      Log("process " + std::to_string(left.front()) + ", which a session started, does not end");
      return;
    }
    for (pid_t process : left) kill(process, SIGKILL);
    poll(nullptr, 0, 1);
  }
}

}  // namespace board_server
