// See system.h.
#include "system.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "fault.h"

namespace vta {

std::optional<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return std::nullopt;
  return text;
}

std::optional<std::string> ReadLine(const std::string& path) {
  const std::optional<std::string> text = ReadText(path);
  if (!text) return std::nullopt;
  const char* const blanks = " \t\r\n";
  const size_t first = text->find_first_not_of(blanks);
  if (first == std::string::npos) return "";
  return text->substr(first, text->find_last_not_of(blanks) - first + 1);
}

void WriteText(const std::string& path, const std::string& text, bool create) {
  const int flags = O_WRONLY | O_TRUNC | O_CLOEXEC | (create ? O_CREAT : 0);
  const int file = open(path.c_str(), flags, 0644);
  if (file < 0) Fail("cannot write " + path + ": " + strerror(errno));
  size_t done = 0;
  int error = 0;
  while (done < text.size() && error == 0) {
    const ssize_t written = write(file, text.data() + done, text.size() - done);
    if (written > 0) done += static_cast<size_t>(written);
    if (written == 0 || (written < 0 && errno != EINTR)) error = written == 0 ? EIO : errno;
  }
  if (close(file) != 0 && error == 0) error = errno;
  if (error != 0) Fail("cannot write " + path + ": " + strerror(error));
}

}  // namespace vta
