// See udmabuf.h.
#include "udmabuf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "fault.h"

namespace vta {
namespace {

// Of sysfs: decimal, or 0x and hexadecimal.
uint64_t ReadNumber(const std::string& path) {
  const std::string text = ReadLine(path).value_or("");
  char* end = nullptr;
  const uint64_t number = strtoull(text.c_str(), &end, 0);
  if (text.empty() || *end != '\0') Fail(path + " does not contain a number: \"" + text + "\"");
  return number;
}

// The module's older versions lack some files.
std::optional<uint64_t> OptionalNumber(const std::string& path) {
  if (!ReadText(path)) return std::nullopt;
  return ReadNumber(path);
}

}  // namespace

UdmabufDevices::UdmabufDevices(const System& system) : system_(system) {
  // The module's name before and since 2020.
  for (const char* name : {"/sys/class/u-dma-buf", "/sys/class/udmabuf"}) {
    Find(system.Path(name));
  }
}

void UdmabufDevices::Find(const std::string& folder) {
  std::error_code error;  // the folder is missing where the module is
  for (const auto& found : std::filesystem::directory_iterator(folder, error)) {
    const std::string path = found.path().string();
    Entry entry;
    entry.name = found.path().filename().string();
    entry.folder = path;
    entry.physical = ReadNumber(path + "/phys_addr");
    entry.size = static_cast<size_t>(ReadNumber(path + "/size"));
    entry.coherent = OptionalNumber(path + "/dma_coherent").value_or(0) == 1;
    entry.taken = PageRanges(entry.size);
    devices_.push_back(entry);
  }
}

UdmabufDevices::~UdmabufDevices() {
  for (const Entry& entry : devices_) {
    if (entry.data != nullptr) munmap(entry.data, entry.size);
  }
}

UdmabufDevices::Entry* UdmabufDevices::Smallest(size_t bytes, size_t* first) {
  std::vector<Entry*> by_size;
  for (Entry& entry : devices_) by_size.push_back(&entry);
  std::sort(by_size.begin(), by_size.end(),
            [](const Entry* one, const Entry* other) { return one->size < other->size; });
  for (Entry* entry : by_size) {
    const std::optional<uint64_t> place = entry->taken.Take(bytes);
    if (!place) continue;
    *first = static_cast<size_t>(*place);
    return entry;
  }
  return nullptr;
}

// Modes from 5 on map the memory past the CPU's caches, whoever opens it. What a coherent FPGA
// wrote may be in those caches alone.
void UdmabufDevices::CheckCached(const Entry& entry) {
  constexpr uint64_t kLastCached = 4;
  const std::string path = entry.folder + "/sync_mode";
  const uint64_t mode = OptionalNumber(path).value_or(0);
  if (mode <= kLastCached) return;
  Fail(entry.name + " is mapped past the CPU's caches (sync_mode " + std::to_string(mode) +
       "), where results of the FPGA may be missing: echo 1 > " + path);
}

std::string UdmabufDevices::Sizes() const {
  std::string text;
  for (const Entry& entry : devices_) {
    text += (text.empty() ? "" : ", ") + entry.name + " has " + std::to_string(entry.size) +
            (entry.taken.Unused() ? "" : " (" + std::to_string(entry.taken.Used()) + " in use)");
  }
  return text;
}

void UdmabufDevices::Map(Entry* entry) {
  CheckCached(*entry);
  const std::string path = system_.Path("/dev/" + entry->name);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) Fail("cannot open " + path + ": " + strerror(errno));
  void* data = mmap(nullptr, entry->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  if (data == MAP_FAILED) Fail("cannot map " + path + ": " + strerror(error));
  entry->data = static_cast<uint8_t*>(data);
}

DmaBuffer UdmabufDevices::Allocate(size_t bytes) {
  size_t first = 0;
  Entry* entry = Smallest(bytes, &first);
  if (entry == nullptr) {
    Fail("no u-dma-buf device has " + std::to_string(bytes) + " bytes: " + Sizes() +
         "; load the module with more: modprobe u-dma-buf udmabuf0=67108864");
  }
  try {
    if (entry->data == nullptr) Map(entry);
  } catch (const Fault&) {
    entry->taken.Give(first);
    throw;
  }
  const size_t size = static_cast<size_t>(ToPages(std::max<size_t>(bytes, 1)));
  return {entry->data + first, entry->physical + first, size};
}

void UdmabufDevices::Free(const DmaBuffer& buffer) {
  for (Entry& entry : devices_) {
    if (!entry.Has(buffer)) continue;
    entry.taken.Give(static_cast<uint64_t>(buffer.data - entry.data));
    if (!entry.taken.Unused()) return;
    munmap(entry.data, entry.size);
    entry.data = nullptr;
    return;
  }
}

const UdmabufDevices::Entry& UdmabufDevices::EntryOf(const DmaBuffer& buffer) const {
  for (const Entry& entry : devices_) {
    if (entry.Has(buffer)) return entry;
  }
  Fail("a buffer that does not belong to u-dma-buf");
}

void UdmabufDevices::Sync(const DmaBuffer& buffer, size_t offset, size_t bytes,
                          const char* direction, const char* file) const {
  const Entry& entry = EntryOf(buffer);
  const std::string& folder = entry.folder;
  const size_t first = static_cast<size_t>(buffer.data - entry.data);
  WriteText(folder + "/sync_offset", std::to_string(first + offset));
  WriteText(folder + "/sync_size", std::to_string(bytes));
  WriteText(folder + "/sync_direction", direction);
  WriteText(folder + file, "1");
}

void UdmabufDevices::Flush(const DmaBuffer& buffer, size_t offset, size_t bytes) {
  Sync(buffer, offset, bytes, "1", "/sync_for_device");
}

void UdmabufDevices::Invalidate(const DmaBuffer& buffer, size_t offset, size_t bytes) {
  Sync(buffer, offset, bytes, "2", "/sync_for_cpu");
}

}  // namespace vta
