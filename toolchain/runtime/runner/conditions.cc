// See conditions.h.
#include "conditions.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

namespace runner {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

constexpr size_t kLongestLine = 64;
constexpr size_t kMostFolders = 1024;

// The folders below another one whose names are a prefix and a number, sorted.
std::vector<std::string> NumberedFolders(const std::string& parent, const std::string& prefix) {
  std::vector<std::string> folders;
  DIR* listing = opendir(parent.c_str());
  if (listing == nullptr) return folders;
  while (const dirent* entry = readdir(listing)) {
    const std::string name = entry->d_name;
    const bool fits = name.size() > prefix.size() && name.compare(0, prefix.size(), prefix) == 0;
    if (fits && std::all_of(name.begin() + static_cast<long>(prefix.size()), name.end(), isdigit)) {
      folders.push_back(parent + "/" + name);
    }
  }
  closedir(listing);
  std::sort(folders.begin(), folders.end());
  if (folders.size() > kMostFolders) folders.resize(kMostFolders);
  return folders;
}

void AddReadable(std::vector<std::string>* files, const std::string& path) {
  if (access(path.c_str(), R_OK) == 0) files->push_back(path);
}

// The first line of a file as printable ASCII; "" if it cannot be read, as of a CPU that is asleep.
std::string LineOf(const std::string& path) {
  std::string line;
  std::ifstream stream(path);
  std::getline(stream, line);
  line.resize(std::min(line.size(), kLongestLine));
  for (char& letter : line) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  return line;
}

}  // namespace

Conditions::Conditions(const std::string& sysfs) {
  for (const std::string& cpu : NumberedFolders(sysfs + "/devices/system/cpu", "cpu")) {
    AddReadable(&clocks_, cpu + "/cpufreq/scaling_cur_freq");
    AddReadable(&governors_, cpu + "/cpufreq/scaling_governor");
    AddReadable(&throttles_, cpu + "/thermal_throttle/core_throttle_count");
    AddReadable(&throttles_, cpu + "/thermal_throttle/package_throttle_count");
  }
  for (const std::string& device : NumberedFolders(sysfs + "/class/thermal", "cooling_device")) {
    cooling_.emplace_back(device + "/cur_state", device + "/type");
  }
}

json::Object Conditions::Look() const {
  json::Array clocks, governors, cooling;
  for (const std::string& path : clocks_) {
    const int64_t khz = std::atoll(LineOf(path).c_str());
    if (khz > 0) clocks.push_back(khz);
  }
  std::vector<std::string> names;
  for (const std::string& path : governors_) names.push_back(LineOf(path));
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const std::string& name : names) governors.push_back(String(name));
  int64_t throttles = 0;
  for (const std::string& path : throttles_) throttles += std::atoll(LineOf(path).c_str());
  for (const auto& [state, kind] : cooling_) {
    const std::string level = LineOf(state);
    if (std::atoll(level.c_str()) > 0) cooling.push_back(String(level + " " + LineOf(kind)));
  }
  return json::Object{{String("khz"), clocks},
                      {String("governors"), governors},
                      {String("throttles"), throttles_.empty() ? json::Value(nullptr) : json::Value(throttles)},
                      {String("cooling"), cooling}};
}

}  // namespace runner
