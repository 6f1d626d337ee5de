// Where the kernel shows its devices, and the few ways to read and write such files.
#ifndef VTA_SYSTEM_H_
#define VTA_SYSTEM_H_

#include <optional>
#include <string>

namespace vta {

struct System {
  std::string root;  // put before every path
  std::string cma = "libcma.so";
  std::string xrt = "libxrt_core.so.2";

  std::string Path(const std::string& path) const { return root + path; }
};

// The whole of a file; nothing where it cannot be read.
std::optional<std::string> ReadText(const std::string& path);

// The same without line ends and blanks around it.
std::optional<std::string> ReadLine(const std::string& path);

// Replaces what is in a file, which has to be there unless it may be created. Throws Fault.
void WriteText(const std::string& path, const std::string& text, bool create = false);

}  // namespace vta

#endif  // VTA_SYSTEM_H_
