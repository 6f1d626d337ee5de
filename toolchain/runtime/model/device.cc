// See device.h. Linux only: /proc, /sys and sched_getaffinity.
#include "device.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "fault.h"

namespace edge {
namespace {

// "flags<tab>: fpu vme ..." on x86, "Features<tab>: fp asimd ..." on Arm, "isa<tab>: rv64imafdcv_zba" on
// RISC-V; "" for any other line.
std::string FeatureWords(const std::string& line) {
  const size_t colon = line.find(':');
  if (colon == std::string::npos) return "";
  const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
  const std::string words = line.substr(colon + 1);
  if (key == "isa") return IsaWords(words);
  return key == "flags" || key == "Features" ? words : "";
}

// What every CPU has: clusters of one device may differ, and the scheduler picks the CPU.
std::set<std::string> CommonCpuFeatures() {
  std::set<std::string> common;
  bool first = true;
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    std::istringstream words(FeatureWords(line));
    std::set<std::string> here, both;
    for (std::string word; words >> word;) here.insert(word);
    if (here.empty()) continue;
    std::set_intersection(here.begin(), here.end(), common.begin(), common.end(),
                          std::inserter(both, both.end()));
    common = first ? here : both;
    first = false;
  }
  return common;
}

// 0 where the kernel does not tell, which leaves the CPUs in their own order.
int64_t MaxFrequency(int cpu) {
  int64_t frequency = 0;
  std::ifstream("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                "/cpufreq/cpuinfo_max_freq") >>
      frequency;
  return frequency;
}

std::vector<int> UsableCpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  std::stable_sort(cpus.begin(), cpus.end(),
                   [](int left, int right) { return MaxFrequency(left) > MaxFrequency(right); });
  return cpus;
}

}  // namespace

std::string IsaWords(const std::string& isa) {
  const size_t begin = isa.find_first_not_of(" \t");
  if (begin == std::string::npos || isa.compare(begin, 2, "rv") != 0) return "";
  std::string words;
  bool are_letters = true;  // before the first name of several letters
  const size_t first = isa.find_first_not_of("0123456789", begin + 2);
  if (first == std::string::npos) return "";
  for (const char letter : isa.substr(first)) {
    if (letter == '_') are_letters = false;
    if (are_letters && !words.empty()) words += ' ';
    words += letter == '_' ? ' ' : letter;
  }
  return words;
}

void CheckCpuFeatures(const std::vector<std::string>& needed, const std::string& manifest) {
  if (needed.empty()) return;
  const std::set<std::string> present = CommonCpuFeatures();
  std::string missing;
  for (const std::string& feature : needed) {
    if (present.count(feature) == 0) missing += (missing.empty() ? "" : ", ") + feature;
  }
  if (!missing.empty()) throw Fault(kExitLoad, "this CPU lacks the features: " + missing, manifest);
}

std::vector<int> ChooseCpus(int64_t threads) {
  std::vector<int> cpus = UsableCpus();
  const int64_t usable = static_cast<int64_t>(cpus.size());
  if (threads > usable) {
    throw Fault(kExitUsage, std::to_string(threads) + " threads, but this process may use " +
                                std::to_string(usable) + " CPUs");
  }
  if (threads > 0) cpus.resize(static_cast<size_t>(threads));
  return cpus;
}

}  // namespace edge
