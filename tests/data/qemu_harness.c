// Stands in for QEMU with a plugin: files are mapped as those of a guest, and blocks of them are translated and executed.
//
// Its arguments are the file that is told of, and a shared library. The file's block of 3 instructions at 4112 is executed
// twice; each time the library executes 5 instructions, once for it, and once for the program, which ran in between.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef void (*Translated)(uint64_t, void*);
typedef void (*Executed)(unsigned, void*);

struct Block {
  const char* start;
  size_t length;
  Executed executed;
  void* data;
};

static Translated translated;
static void (*ended)(uint64_t, void*);

int qemu_plugin_install(uint64_t, const void*, int, char**);

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, Translated callback) {
  (void)id;
  translated = callback;
}
void qemu_plugin_register_vcpu_tb_exec_inline(void* block, int op, void* counter, uint64_t count) {
  (void)block, (void)op, (void)counter, (void)count;
}
void qemu_plugin_register_atexit_cb(uint64_t id, void (*callback)(uint64_t, void*), void* data) {
  (void)id, (void)data;
  ended = callback;
}
void qemu_plugin_register_vcpu_tb_exec_cb(struct Block* block, Executed executed, int flags, void* data) {
  (void)flags;
  block->executed = executed;
  block->data = data;
}
size_t qemu_plugin_tb_n_insns(const struct Block* block) { return block->length; }
void* qemu_plugin_tb_get_insn(const struct Block* block, size_t at) { return (void*)(block->start + at * 4); }
const void* qemu_plugin_insn_data(const void* instruction) { return instruction; }
size_t qemu_plugin_insn_size(const void* instruction) {
  (void)instruction;
  return 4;
}
void* qemu_plugin_insn_haddr(const void* instruction) { return (void*)instruction; }

static const char* Mapped(const char* path) {
  void* found = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, open(path, O_RDONLY), 4096);
  return found == MAP_FAILED ? NULL : found;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  char option[4096];
  char* options[] = {option};
  snprintf(option, sizeof(option), "code=%s", argv[1]);
  const char* file = Mapped(argv[1]);
  const char* library = Mapped(argv[2]);
  if (!file || !library || qemu_plugin_install(0, NULL, 1, options)) return 1;
  struct Block of_file = {.start = file + 16, .length = 3};
  struct Block of_library = {.start = library, .length = 5};
  struct Block of_program = {.start = malloc(64), .length = 7};
  struct Block* order[] = {&of_library, &of_file, &of_library, &of_program, &of_library, &of_file};
  translated(0, &of_file);
  translated(0, &of_library);
  translated(0, &of_program);
  for (size_t i = 0; i < sizeof(order) / sizeof(*order); ++i) order[i]->executed(0, order[i]->data);
  ended(0, NULL);
  return 0;
}
