// XRT's library of an edge device, for tests: buffers with two sides, and a log of what is done to
// them. The CPU's side gets to the other one, and back, by xclSyncBO alone.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace {

struct Buffer {
  char* cpu;
  char* dram;
  size_t size;
  unsigned flags;
  bool mapped;
};

int device;
std::map<unsigned, Buffer> buffers;
unsigned last = 0;

size_t Number(const char* name, size_t usual) {
  const char* text = getenv(name);
  return text != nullptr ? strtoul(text, nullptr, 0) : usual;
}

void Tell(const char* what, unsigned long first, unsigned long second) {
  FILE* log = fopen(getenv("FAKE_XRT_LOG"), "a");
  fprintf(log, "%s %#lx %lu\n", what, first, second);
  fclose(log);
}

}  // namespace

extern "C" {

struct xclBOProperties {
  uint32_t handle;
  uint32_t flags;
  uint64_t size;
  uint64_t paddr;
  int reserved;
};

unsigned xclProbe() { return static_cast<unsigned>(Number("FAKE_XRT_DEVICES", 1)); }

void* xclOpen(unsigned index, const char*, int) {
  Tell("open", index, 0);
  return Number("FAKE_XRT_OPENS", 1) != 0 ? &device : nullptr;
}

void xclClose(void* handle) { Tell("close", handle == &device ? 0 : 1, 0); }

unsigned xclAllocBO(void* handle, size_t size, int, unsigned flags) {
  Tell("alloc", flags, size);
  if (handle != &device || size > Number("FAKE_XRT_MOST", 1 << 24)) return 0xffffffff;
  const unsigned number = ++last;
  buffers[number] = {static_cast<char*>(malloc(size)), static_cast<char*>(calloc(1, size)), size,
                     flags, false};
  return number;
}

void* xclMapBO(void*, unsigned number, bool write) {
  Tell("map", number, write ? 1 : 0);
  if (Number("FAKE_XRT_MAPS", 1) == 0) return nullptr;
  buffers.at(number).mapped = true;
  return buffers.at(number).cpu;
}

int xclUnmapBO(void*, unsigned number, void* data) {
  Buffer& one = buffers.at(number);
  Tell("unmap", number, one.mapped && data == one.cpu ? 0 : 1);
  one.mapped = false;
  return 0;
}

void xclFreeBO(void*, unsigned number) {
  const auto found = buffers.find(number);
  Tell("free", number, found->second.mapped ? 1 : 0);
  free(found->second.cpu);
  free(found->second.dram);
  buffers.erase(found);
}

int xclGetBOProperties(void*, unsigned number, xclBOProperties* properties) {
  const Buffer& one = buffers.at(number);
  *properties = {number, one.flags, one.size, Number("FAKE_XRT_PADDR", 0x1c000000), 0};
  return Number("FAKE_XRT_TELLS", 1) != 0 ? 0 : -22;
}

int xclSyncBO(void*, unsigned number, int direction, size_t size, size_t offset) {
  Buffer& one = buffers.at(number);
  Tell(direction == 0 ? "to" : "from", offset, size);
  if (Number("FAKE_XRT_SYNCS", 1) == 0 || offset + size > one.size) return -5;
  char* const from = (direction == 0 ? one.cpu : one.dram) + offset;
  memcpy((direction == 0 ? one.dram : one.cpu) + offset, from, size);
  return 0;
}

}  // extern "C"
