// See binary_cache.h.
#include "binary_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace opencl {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[] = "edge-toolchain OpenCL binary 1\n";
constexpr uintmax_t kMostBytes = 256u << 20;

// FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/: finds damage and names files; the key itself
// is compared too.
uint64_t Hash(const std::string& bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return hash;
}

std::string Hex(uint64_t number) {
  char text[17];
  snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

// What stands before the binary.
std::string Header(const std::string& key, const std::string& binary) {
  return kMagic + std::to_string(key.size()) + " " + std::to_string(binary.size()) + " " +
         Hex(Hash(binary)) + "\n" + key;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string UserFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return cache;
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache" : "";
}

bool WriteAside(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  return file.good();
}

}  // namespace

BinaryCache BinaryCache::Default() {
  const char* chosen = std::getenv("EDGE_OPENCL_CACHE");
  if (chosen != nullptr) return BinaryCache(chosen);
  const std::string user = UserFolder();
  return BinaryCache(user.empty() ? "" : user + "/edge-toolchain/opencl");
}

std::optional<std::string> BinaryCache::Find(const std::string& key) const {
  if (!Keeps()) return std::nullopt;
  const std::string path = PathOf(key);
  const std::string text = ReadFile(path);
  // The binary's size is not known beforehand: it is what is left behind the header.
  for (size_t start = sizeof(kMagic) - 1; start < text.size(); ++start) {
    if (text[start] != '\n') continue;
    if (text.size() < start + 1 + key.size()) break;
    std::string binary = text.substr(start + 1 + key.size());
    if (text.compare(0, start + 1 + key.size(), Header(key, binary)) != 0) break;
    utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // used just now: it is dropped last
    return binary;
  }
  return std::nullopt;
}

void BinaryCache::Keep(const std::string& key, const std::string& binary) const {
  if (!Keeps()) return;
  static std::atomic<int> count{0};
  std::error_code ignored;  // see the class: all of this may fail
  fs::create_directories(folder_, ignored);
  const std::string path = PathOf(key);
  const std::string aside =
      path + "." + std::to_string(getpid()) + "." + std::to_string(++count) + ".new";
  if (WriteAside(aside, Header(key, binary) + binary)) {
    fs::rename(aside, path, ignored);
    DropOldest();
  }
  fs::remove(aside, ignored);
}

std::string BinaryCache::PathOf(const std::string& key) const {
  return folder_ + "/" + Hex(Hash(key)) + ".bin";
}

void BinaryCache::DropOldest() const {
  struct File {
    fs::file_time_type used;
    uintmax_t size;
    fs::path path;
  };
  std::vector<File> files;
  uintmax_t total = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    files.push_back({entry.last_write_time(error), entry.file_size(error), entry.path()});
    total += files.back().size;
  }
  std::sort(files.begin(), files.end(),
            [](const File& one, const File& other) { return one.used < other.used; });
  for (const File& file : files) {
    if (total <= kMostBytes) break;
    if (fs::remove(file.path, error)) total -= file.size;
  }
}

}  // namespace opencl
