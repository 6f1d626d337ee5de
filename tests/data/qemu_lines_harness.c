// Stands in for QEMU with a plugin that simulates caches: standard input says what the guest does.
//
// Its arguments are the plugin's. Each line of the input is `load ADDRESS`, `store ADDRESS`, `mark NUMBER`, or `run` for
// the one block of two instructions.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const uint32_t code[] = {0xD503201F, 0xD65F03C0};  // nop, ret
static void (*translated)(uint64_t, void*);
static void (*accessed)(unsigned, uint32_t, uint64_t, void*);
static void (*called)(uint64_t, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                      uint64_t);
static void (*ended)(uint64_t, void*);
static void* data_of_access;
static uint64_t* times;

int qemu_plugin_install(uint64_t, const void*, int, char**);

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void* callback) {
  (void)id;
  translated = callback;
}
void qemu_plugin_register_vcpu_tb_exec_inline(void* block, int op, void* counter, uint64_t count) {
  (void)block, (void)op, (void)count;
  times = counter;
}
void qemu_plugin_register_vcpu_mem_cb(void* instruction, void* callback, int flags, int kinds, void* data) {
  (void)instruction, (void)flags, (void)kinds;
  accessed = callback;
  data_of_access = data;
}
void qemu_plugin_register_vcpu_syscall_cb(uint64_t id, void* callback) {
  (void)id;
  called = callback;
}
void qemu_plugin_reset(uint64_t id, void (*callback)(uint64_t)) {
  callback(id);
  translated(id, NULL);
}
void qemu_plugin_register_atexit_cb(uint64_t id, void* callback, void* data) {
  (void)id, (void)data;
  ended = callback;
}
size_t qemu_plugin_tb_n_insns(const void* block) {
  (void)block;
  return sizeof(code) / sizeof(*code);
}
void* qemu_plugin_tb_get_insn(const void* block, size_t at) {
  (void)block;
  return (void*)(code + at);
}
const void* qemu_plugin_insn_data(const void* instruction) { return instruction; }
size_t qemu_plugin_insn_size(const void* instruction) {
  (void)instruction;
  return sizeof(*code);
}
bool qemu_plugin_mem_is_store(uint32_t info) { return info; }

int main(int argc, char** argv) {
  if (qemu_plugin_install(0, NULL, argc - 1, argv + 1)) return 1;
  translated(0, NULL);
  char word[16];
  unsigned long long number;
  for (char line[64]; fgets(line, sizeof(line), stdin);) {
    const int count = sscanf(line, "%15s %llx", word, &number);
    if (!strcmp(word, "run")) {
      ++*times;
    } else if (count < 2) {
      return 2;
    } else if (!strcmp(word, "mark")) {
      called(0, 0, 155, 0x7A000000 + number, 0, 0, 0, 0, 0, 0, 0);
    } else if (accessed) {
      accessed(0, !strcmp(word, "store"), number, data_of_access);
    }
  }
  ended(0, NULL);
  return 0;
}
