// Where the sessions' files are: one folder for this server, and in it one for every session.
//
// The server's folder stays locked for as long as the server lives, however it ends. A folder of
// this naming without a lock is what an earlier server left behind.
#ifndef BOARD_SERVER_WORK_FOLDER_H_
#define BOARD_SERVER_WORK_FOLDER_H_

#include <string>
#include <vector>

#include "sockets.h"

namespace board_server {

class WorkFolder {
 public:
  // Sweeps `base` and makes the server's folder in it; an empty `base` is $TMPDIR or /tmp. Throws
  // edge::Fault of kExitUsage.
  explicit WorkFolder(const std::string& base);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::string& path() const { return path_; }

  // A new, empty folder. Throws std::runtime_error.
  std::string MakeSessionFolder(int number) const;

 private:
  bool MakeLocked(const std::string& base);

  std::string path_;
  Descriptor lock_;
};

// The names in a folder, in order. False, with errno set, if it cannot be read.
bool ListNames(const std::string& path, std::vector<std::string>* names);

// With everything in it; what cannot be removed is logged.
void RemoveFolder(const std::string& path);

}  // namespace board_server

#endif  // BOARD_SERVER_WORK_FOLDER_H_
