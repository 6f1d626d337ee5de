// A plugin for QEMU's user mode: how often each block of instructions is executed, and the lines of memory that this
// takes with the data caches of a core.
//
// Arguments: out=PATH, the file that it writes; l1=KIB:WAYS, the first level; last=KIB:WAYS, a last level behind it.
// `marked=on` says that marks will come. More arguments `last` are alternatives, each simulated beside the others. Lines have 64 bytes, and the caches keep
// what was used last, write back, and allocate on a store.
//
// Of each last level the file has a line "lines KIB FORESEEN OTHER WRITTEN": lines read from memory that a prefetcher
// finds, as they follow another one of a stream; other ones; and lines written to memory. Of each block it has
// "block TIMES CODE", the code in hexadecimal.
//
// The guest controls it by getpgid(MARK + n): 1 sets all counts to zero, 2 writes the file and ends counting, 3 starts
// the caches, so that what comes before is quicker. Without a mark, all is counted and written at the end.
//
// The counters are not atomic: let the program have one thread.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qemu_plugin.h"

enum { kLine = 64, kMostLevels = 8, kStreams = 32, kFarthest = 4, kGetpgid = 155, kMark = 0x7A000000 };
enum { kReset = 1, kWrite = 2, kStart = 3 };

typedef struct Block {
  struct Block* next;
  uint64_t times;
  size_t bytes;
  uint8_t code[];
} Block;

typedef struct {
  uint64_t* lines;  // each set's, the last used first; 0: none
  bool* dirty;
  unsigned kib, sets, ways;
} Cache;

typedef struct {
  Cache cache;
  uint64_t foreseen, other, written;
} Last;

static Block* blocks;
static const char* out;
static Cache first = {.kib = 32, .ways = 2};
static Last lasts[kMostLevels];
static int levels;
static bool started = true, done;

// A hit moves a line to the front of its set, a miss puts it there. `evicted` is the line that is to be written, or 0.
static bool Touch(Cache* cache, uint64_t line, bool store, uint64_t* evicted) {
  const size_t start = line % cache->sets * cache->ways, last = cache->ways - 1;
  uint64_t* lines = cache->lines + start;
  bool* dirty = cache->dirty + start;
  size_t at = 0;
  while (at < last && lines[at] != line) ++at;
  const bool hit = lines[at] == line;
  *evicted = !hit && dirty[at] ? lines[at] : 0;
  const bool marked = store || (hit && dirty[at]);
  memmove(lines + 1, lines, at * sizeof(*lines));
  memmove(dirty + 1, dirty, at * sizeof(*dirty));
  lines[0] = line;
  dirty[0] = marked;
  return hit;
}

// Whether a line follows the last one of a stream that has gone on before.
static bool Foreseen(uint64_t line) {
  static struct {
    uint64_t last, used;
    bool goes_on;
  } streams[kStreams];
  static uint64_t now;
  int oldest = 0;
  ++now;
  for (int i = 0; i < kStreams; ++i) {
    if (line > streams[i].last && line - streams[i].last <= kFarthest) {
      const bool known = streams[i].goes_on;
      streams[i].last = line;
      streams[i].used = now;
      streams[i].goes_on = true;
      return known;
    }
    if (streams[i].used < streams[oldest].used) oldest = i;
  }
  streams[oldest].last = line;
  streams[oldest].used = now;
  streams[oldest].goes_on = false;
  return false;
}

static void Missed(Last* last, uint64_t line, uint64_t evicted, bool foreseen) {
  uint64_t written = 0;
  if (evicted) {
    Touch(&last->cache, evicted, true, &written);
    last->written += written != 0;
  }
  if (!Touch(&last->cache, line, false, &written)) ++*(foreseen ? &last->foreseen : &last->other);
  last->written += written != 0;
}

static void Accessed(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void* data) {
  (void)cpu, (void)data;
  static uint64_t latest;
  const uint64_t line = address / kLine;
  const bool store = qemu_plugin_mem_is_store(info);
  if (line == latest && !store) return;
  latest = line;
  uint64_t evicted = 0;
  if (Touch(&first, line, store, &evicted)) return;
  const bool foreseen = Foreseen(line);
  for (int i = 0; i < levels; ++i) Missed(&lasts[i], line, evicted, foreseen);
}

static void Translated(qemu_plugin_id_t id, struct qemu_plugin_tb* translated) {
  (void)id;
  size_t bytes = 0;
  const size_t count = qemu_plugin_tb_n_insns(translated);
  for (size_t i = 0; i < count; ++i) bytes += qemu_plugin_insn_size(qemu_plugin_tb_get_insn(translated, i));
  Block* block = calloc(1, sizeof(Block) + bytes);
  if (!block) abort();
  for (size_t i = 0; i < count; ++i) {
    struct qemu_plugin_insn* instruction = qemu_plugin_tb_get_insn(translated, i);
    const size_t size = qemu_plugin_insn_size(instruction);
    memcpy(block->code + block->bytes, qemu_plugin_insn_data(instruction), size);
    block->bytes += size;
    if (!started) continue;
    qemu_plugin_register_vcpu_mem_cb(instruction, Accessed, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, NULL);
  }
  block->next = blocks;
  blocks = block;
  qemu_plugin_register_vcpu_tb_exec_inline(translated, QEMU_PLUGIN_INLINE_ADD_U64, &block->times, 1);
}

static void Reset(void) {
  for (Block* one = blocks; one; one = one->next) one->times = 0;
  for (int i = 0; i < levels; ++i) lasts[i].foreseen = lasts[i].other = lasts[i].written = 0;
}

static void Write(void) {
  if (done) return;
  done = true;
  FILE* file = fopen(out, "w");
  if (!file) abort();
  for (const Last* one = lasts; one < lasts + levels; ++one) {
    fprintf(file, "lines %u %llu %llu %llu\n", one->cache.kib, (unsigned long long)one->foreseen,
            (unsigned long long)one->other, (unsigned long long)one->written);
  }
  for (const Block* one = blocks; one; one = one->next) {
    if (!one->times) continue;
    fprintf(file, "block %llu ", (unsigned long long)one->times);
    for (size_t i = 0; i < one->bytes; ++i) fprintf(file, "%02x", one->code[i]);
    fputc('\n', file);
  }
  if (fclose(file)) abort();
}

static void Register(qemu_plugin_id_t id);

static void Called(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4,
                   uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
  (void)cpu, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
  if (number != kGetpgid) return;
  const uint32_t mark = (uint32_t)a1;
  if (mark == kMark + kReset) Reset();
  if (mark == kMark + kWrite) Write();
  if (mark != kMark + kStart || started) return;
  started = true;
  qemu_plugin_reset(id, Register);  // all code is translated again, now with the caches
}

static void Ended(qemu_plugin_id_t id, void* data) {
  (void)id, (void)data;
  Write();
}

static void Register(qemu_plugin_id_t id) {
  qemu_plugin_register_vcpu_tb_trans_cb(id, Translated);
  qemu_plugin_register_vcpu_syscall_cb(id, Called);
  qemu_plugin_register_atexit_cb(id, Ended, NULL);
}

static bool Make(Cache* cache, const char* text) {
  if (sscanf(text, "%u:%u", &cache->kib, &cache->ways) != 2 || !cache->ways) return false;
  cache->sets = cache->kib * 1024 / kLine / cache->ways;
  if (!cache->sets) return false;
  cache->lines = calloc((size_t)cache->sets * cache->ways, sizeof(*cache->lines));
  cache->dirty = calloc((size_t)cache->sets * cache->ways, sizeof(*cache->dirty));
  return cache->lines && cache->dirty;
}

static bool Parse(const char* text) {
  if (!strncmp(text, "out=", 4)) return (out = strdup(text + 4)) != NULL;
  if (!strncmp(text, "l1=", 3)) return Make(&first, text + 3);
  if (!strncmp(text, "last=", 5)) return levels < kMostLevels && Make(&lasts[levels++].cache, text + 5);
  if (!strcmp(text, "marked=on")) return !(started = false);
  return false;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void* info, int argc, char** argv) {
  (void)info;
  for (int i = 0; i < argc; ++i) {
    if (!Parse(argv[i])) {
      fprintf(stderr, "not understood, or too much: %s\n", argv[i]);
      return 1;
    }
  }
  if (!out || !first.lines) {
    fprintf(stderr, "out= and l1= are needed\n");
    return 1;
  }
  Register(id);
  return 0;
}
