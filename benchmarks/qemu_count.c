// A plugin for QEMU's user mode that counts what a program executes: all instructions, and some kinds of them.
//
// Each argument KIND=MASK:VALUE+MASK:VALUE... (hexadecimal) names a kind of 32-bit instructions by their encodings. At
// the end, a line "KIND NUMBER" for each of them and one for "all" go to standard error.
//
// The argument code=PATH tells of the code of one file, block by block, instead: a line "block OFFSET LENGTH TIMES CALLED"
// for each that was executed, with its place in the file, its instructions, how often it was executed, and how many
// instructions other shared libraries executed for it (of libm, say). What the program itself does for it is not among them.
//
// The counters are shared by all threads and not atomic: let the program have one.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qemu_plugin.h"

enum { kMostKinds = 16, kMostPatterns = 16 };

typedef struct {
  char name[32];
  int patterns;
  uint32_t mask[kMostPatterns], value[kMostPatterns];
  uint64_t count;
} Kind;

static Kind kinds[kMostKinds] = {{.name = "all", .patterns = 1}};  // mask and value 0: any instruction
static int known = 1;

static bool Is(const Kind* kind, uint32_t word) {
  for (int i = 0; i < kind->patterns; ++i) {
    if ((word & kind->mask[i]) == kind->value[i]) return true;
  }
  return false;
}

static void Translated(qemu_plugin_id_t id, struct qemu_plugin_tb* block) {
  (void)id;
  uint64_t found[kMostKinds] = {0};
  for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); ++i) {
    const struct qemu_plugin_insn* instruction = qemu_plugin_tb_get_insn(block, i);
    uint32_t word = 0;
    if (qemu_plugin_insn_size(instruction) == sizeof(word)) {
      memcpy(&word, qemu_plugin_insn_data(instruction), sizeof(word));
    }
    for (int k = 0; k < known; ++k) found[k] += Is(&kinds[k], word);
  }
  for (int k = 0; k < known; ++k) {
    if (found[k]) {
      qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64, &kinds[k].count, found[k]);
    }
  }
}

// A block of the file's code, or of anything else.
typedef struct Block {
  struct Block* next;
  enum { kOfFile, kOfLibrary, kOfProgram } where;
  uint64_t offset, length, times, called;
} Block;

static const char* code;     // the file; without one, kinds are counted
static Block* blocks;        // all of them
static Block* caller;        // the last block of the file, as long as nothing but shared libraries has followed

static void Executed(unsigned cpu, void* data) {
  (void)cpu;
  Block* block = data;
  if (block->where == kOfLibrary) {
    if (caller) caller->called += block->length;
    return;
  }
  caller = block->where == kOfFile ? block : NULL;
  ++block->times;
}

// Finds out what an address of this process is a part of. Files are mapped as they are: the guest's pages are the host's.
static void Locate(const void* address, Block* block) {
  FILE* maps = fopen("/proc/self/maps", "r");
  block->where = kOfProgram;
  char line[4600];
  while (maps && fgets(line, sizeof(line), maps)) {
    unsigned long low, high, offset;
    char path[4096] = "";
    sscanf(line, "%lx-%lx %*s %lx %*s %*s %4095[^\n]", &low, &high, &offset, path);
    if ((uintptr_t)address < low || (uintptr_t)address >= high) continue;
    if (!strcmp(path, code)) block->where = kOfFile;
    else if (strstr(path, ".so")) block->where = kOfLibrary;
    block->offset = (uintptr_t)address - low + offset;
  }
  if (maps) fclose(maps);
}

static void Watched(qemu_plugin_id_t id, struct qemu_plugin_tb* translated) {
  (void)id;
  Block* block = calloc(1, sizeof(Block));
  if (!block) abort();
  Locate(qemu_plugin_insn_haddr(qemu_plugin_tb_get_insn(translated, 0)), block);
  block->length = qemu_plugin_tb_n_insns(translated);
  block->next = blocks;
  blocks = block;
  qemu_plugin_register_vcpu_tb_exec_cb(translated, Executed, 0, block);
}

static void Tell(void) {
  for (const Block* one = blocks; one; one = one->next) {
    if (one->where != kOfFile || !one->times) continue;
    fprintf(stderr, "block %llu %llu %llu %llu\n", (unsigned long long)one->offset, (unsigned long long)one->length,
            (unsigned long long)one->times, (unsigned long long)one->called);
  }
}

static void Ended(qemu_plugin_id_t id, void* data) {
  (void)id, (void)data;
  if (code) return Tell();
  for (int k = 0; k < known; ++k) fprintf(stderr, "%s %llu\n", kinds[k].name, (unsigned long long)kinds[k].count);
}

static bool Parse(const char* text, Kind* kind) {
  const char* at = strchr(text, '=');
  if (!at || at == text || at - text >= (ptrdiff_t)sizeof(kind->name)) return false;
  memcpy(kind->name, text, at - text);
  while (*at && kind->patterns < kMostPatterns) {
    char* end;
    kind->mask[kind->patterns] = strtoul(at + 1, &end, 16);
    if (*end != ':') return false;
    kind->value[kind->patterns] = strtoul(end + 1, &end, 16);
    if (*end && *end != '+') return false;
    ++kind->patterns;
    at = end;
  }
  return !*at;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void* info, int argc, char** argv) {
  (void)info;
  for (int i = 0; i < argc; ++i) {
    if (!strncmp(argv[i], "code=", 5)) {
      code = strdup(argv[i] + 5);
      continue;
    }
    if (known == kMostKinds || !Parse(argv[i], &kinds[known++])) {
      fprintf(stderr, "not understood, or too much: %s\n", argv[i]);
      return 1;
    }
  }
  qemu_plugin_register_vcpu_tb_trans_cb(id, code ? Watched : Translated);
  qemu_plugin_register_atexit_cb(id, Ended, NULL);
  return 0;
}
