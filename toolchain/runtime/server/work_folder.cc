// See work_folder.h. Folders are read with plain POSIX calls: on 32-bit boards those of the C++
// library end early at the first inode number that needs 64 bits.
#include "work_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "../model/fault.h"
#include "log.h"

namespace board_server {
namespace {

using edge::Fault;
using edge::kExitUsage;

constexpr char kPrefix[] = ".edge-board-server-";
constexpr size_t kRandomPart = 6;
constexpr int kAttempts = 10;

bool IsOurNaming(const std::string& name) {
  return name.size() == sizeof(kPrefix) - 1 + kRandomPart && name.rfind(kPrefix, 0) == 0;
}

// Opens and locks a folder of this user; not open if it is another's, no folder, or in use.
Descriptor LockFolder(const std::string& path) {
  Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status = {};
  if (!folder.open() || fstat(folder.get(), &status) != 0 || status.st_uid != geteuid() ||
      flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
    folder.Close();
  }
  return folder;
}

// Another server may have swept the folder between its making and its locking.
bool IsStillThere(const std::string& path, const Descriptor& folder) {
  struct stat here = {}, there = {};
  return fstat(folder.get(), &here) == 0 && lstat(path.c_str(), &there) == 0 &&
         here.st_ino == there.st_ino && here.st_dev == there.st_dev;
}

void Sweep(const std::string& base) {
  std::vector<std::string> names;
  if (!ListNames(base, &names)) LogErrno("cannot look for old folders in " + base, errno);
  for (const std::string& name : names) {
    if (!IsOurNaming(name)) continue;
    const std::string path = base + "/" + name;
    const Descriptor lock = LockFolder(path);
    if (!lock.open()) continue;
    Log("removing " + path + ", which an earlier server left");
    RemoveFolder(path);
  }
}

std::string BaseFolder(const std::string& wanted) {
  const char* temporary = getenv("TMPDIR");
  const std::string base = !wanted.empty()                ? wanted
                           : temporary != nullptr && *temporary != '\0' ? temporary
                                                                        : "/tmp";
  // Sessions change into their folders, so that relative paths would not lead there.
  char absolute[PATH_MAX];
  if (realpath(base.c_str(), absolute) == nullptr) {
    throw Fault(kExitUsage, std::string("no work folder: ") + strerror(errno), base);
  }
  return absolute;
}

int RemoveOne(const char* path, const struct stat*, int, struct FTW*) { return remove(path); }

}  // namespace

WorkFolder::WorkFolder(const std::string& base) {
  const std::string folder = BaseFolder(base);
  Sweep(folder);
  for (int i = 0; i < kAttempts; ++i) {
    if (MakeLocked(folder)) return;
  }
  throw Fault(kExitUsage, "cannot keep a folder for the sessions", folder);
}

bool WorkFolder::MakeLocked(const std::string& base) {
  std::string path = base + "/" + kPrefix + std::string(kRandomPart, 'X');
  if (mkdtemp(path.data()) == nullptr) {
    throw Fault(kExitUsage,
                std::string("cannot make a folder for the sessions: ") + strerror(errno), base);
  }
  lock_ = LockFolder(path);
  if (!lock_.open() || !IsStillThere(path, lock_)) return false;
  path_ = path;
  return true;
}

WorkFolder::~WorkFolder() {
  if (!path_.empty()) RemoveFolder(path_);
}

std::string WorkFolder::MakeSessionFolder(int number) const {
  const std::string path = path_ + "/session-" + std::to_string(number);
  if (mkdir(path.c_str(), 0700) != 0) {
    throw std::runtime_error("the board cannot make a folder for the session: " +
                             std::string(strerror(errno)));
  }
  return path;
}

bool ListNames(const std::string& path, std::vector<std::string>* names) {
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) return false;
  while (const dirent* entry = readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names->push_back(name);
  }
  closedir(folder);
  std::sort(names->begin(), names->end());
  return true;
}

void RemoveFolder(const std::string& path) {
  // What is in a folder before the folder, and links instead of what they lead to.
  if (nftw(path.c_str(), RemoveOne, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return;
  LogErrno("cannot remove " + path, errno);
}

}  // namespace board_server
