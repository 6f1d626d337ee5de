// See hardware.h. Linux only: /proc and /sys, of which any part may be missing on a board.
#include "hardware.h"

#include <sys/utsname.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "../model/device.h"
#include "measuring.h"
#include "work_folder.h"

namespace board_server {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

constexpr char kCpuFolder[] = "/sys/devices/system/cpu/cpu";
constexpr char kThermalFolder[] = "/sys/class/thermal";
// Zones that are switched off tell absurd values.
constexpr double kColdest = -60, kHottest = 200;

std::string FirstLine(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

bool FirstNumber(const std::string& path, double* number) {
  std::ifstream file(path);
  return static_cast<bool>(file >> *number);
}

// The values of a key in /proc/cpuinfo, "key<tab>: value", one for each CPU.
std::vector<std::string> CpuInfo(const std::string& key) {
  std::vector<std::string> values;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon == 0) continue;
    if (line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1) != key) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    values.push_back(begin == std::string::npos ? "" : line.substr(begin));
  }
  return values;
}

std::string FirstCpuInfo(const std::string& key) {
  const std::vector<std::string> values = CpuInfo(key);
  return values.empty() ? "" : values.front();
}

json::Array Features() {
  const std::string riscv = edge::IsaWords(FirstCpuInfo("isa")), x86 = FirstCpuInfo("flags");
  std::istringstream words(!riscv.empty() ? riscv : !x86.empty() ? x86 : FirstCpuInfo("Features"));
  json::Array features;
  for (std::string word; words >> word;) features.push_back(String(word));
  return features;
}

// "48K", "2048K", "1M"
int64_t CacheKib(const std::string& text) {
  std::istringstream stream(text);
  int64_t number = 0;
  char unit = 'K';
  stream >> number >> unit;
  return unit == 'M' ? number * 1024 : number;
}

json::Object Caches() {
  json::Object caches;
  const std::string folder = std::string(kCpuFolder) + "0/cache";
  std::vector<std::string> names;
  if (!ListNames(folder, &names)) return caches;
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    const std::string level = FirstLine(path + "/level");
    const int64_t kib = CacheKib(FirstLine(path + "/size"));
    if (level.empty() || kib <= 0 || FirstLine(path + "/type") == "Instruction") continue;
    caches.Set(String("l" + level + (level == "1" ? "d" : "")), kib);
  }
  return caches;
}

int64_t MemoryKib() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    int64_t kib = 0;
    if (key == "MemTotal:" && file >> kib) return kib;
  }
  return 0;
}

json::Value Celsius() {
  std::vector<std::string> names;
  if (!ListNames(kThermalFolder, &names)) return nullptr;
  double hottest = kColdest;
  for (const std::string& name : names) {
    double thousandths = 0;
    if (name.rfind("thermal_zone", 0) != 0) continue;
    if (!FirstNumber(std::string(kThermalFolder) + "/" + name + "/temp", &thousandths)) continue;
    const double celsius = thousandths / 1000;
    if (celsius < kHottest) hottest = std::max(hottest, celsius);
  }
  return hottest > kColdest ? json::Value(hottest) : json::Value(nullptr);
}

std::vector<double> ClocksMhz() {
  std::vector<double> clocks;
  for (int cpu : SessionCpus()) {
    const std::string path = kCpuFolder + std::to_string(cpu) + "/cpufreq/scaling_cur_freq";
    double khz = 0;
    if (FirstNumber(path, &khz) && khz > 0) clocks.push_back(khz / 1000);
  }
  if (!clocks.empty()) return clocks;
  for (const std::string& text : CpuInfo("cpu MHz")) {
    const double mhz = strtod(text.c_str(), nullptr);
    if (mhz > 0) clocks.push_back(mhz);
  }
  return clocks;
}

json::Value MeanClockMhz() {
  const std::vector<double> clocks = ClocksMhz();
  if (clocks.empty()) return nullptr;
  double sum = 0;
  for (double clock : clocks) sum += clock;
  return static_cast<int64_t>(std::lround(sum / static_cast<double>(clocks.size())));
}

// The second number of each thread's schedstat; there is none where the kernel keeps no account.
json::Value WaitedSeconds() {
  constexpr char kThreads[] = "/proc/self/task";
  std::vector<std::string> names;
  double nanoseconds = 0;
  if (!ListNames(kThreads, &names)) return nullptr;
  for (const std::string& name : names) {
    std::ifstream file(std::string(kThreads) + "/" + name + "/schedstat");
    double ran = 0, waited = 0;
    if (!(file >> ran >> waited)) return nullptr;
    nanoseconds += waited;
  }
  return json::Value(nanoseconds * 1e-9);
}

}  // namespace

std::string HardwareLine() {
  utsname names = {};
  uname(&names);
  const json::Object found{{String("machine"), String(names.machine)},
                           {String("cpus"), static_cast<int64_t>(SessionCpus().size())},
                           {String("cpu"), String(FirstCpuInfo("model name"))},
                           {String("features"), Features()},
                           {String("cache_kib"), Caches()},
                           {String("memory_kib"), MemoryKib()}};
  return std::string(json::Stringify(found));
}

std::string ConditionsLine() {
  const json::Object found{{String("celsius"), Celsius()}, {String("mhz"), MeanClockMhz()},
                           {String("waited_s"), WaitedSeconds()}};
  return std::string(json::Stringify(found));
}

}  // namespace board_server
