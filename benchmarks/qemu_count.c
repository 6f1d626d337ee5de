// A plugin for QEMU's user mode that counts what a program executes: all instructions, and some kinds of them.
//
// Each argument KIND=MASK:VALUE+MASK:VALUE... (hexadecimal) names a kind of 32-bit instructions by their encodings. At
// the end, a line "KIND NUMBER" for each of them and one for "all" go to standard error. The counters are shared by all
// threads and not atomic: let the program have one. QEMU's header is in no package; what is used of it is declared
// here (version 1 of the interface, QEMU 4.2 and later).
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb*, enum qemu_plugin_op, void*, uint64_t);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void*), void*);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb*, size_t);
const void* qemu_plugin_insn_data(const struct qemu_plugin_insn*);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn*);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 1;

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

static void Ended(qemu_plugin_id_t id, void* data) {
  (void)id, (void)data;
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
    if (known == kMostKinds || !Parse(argv[i], &kinds[known++])) {
      fprintf(stderr, "not understood, or too much: %s\n", argv[i]);
      return 1;
    }
  }
  qemu_plugin_register_vcpu_tb_trans_cb(id, Translated);
  qemu_plugin_register_atexit_cb(id, Ended, NULL);
  return 0;
}
