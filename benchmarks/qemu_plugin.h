// What the plugins here use of QEMU's header, which is in no package: version 1 of the interface, QEMU 4.2 to 8.1.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
enum { QEMU_PLUGIN_CB_NO_REGS = 0, QEMU_PLUGIN_MEM_RW = 3 };
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb*, enum qemu_plugin_op, void*, uint64_t);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb*, void (*)(unsigned, void*), int, void*);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn*,
                                      void (*)(unsigned, qemu_plugin_meminfo_t, uint64_t, void*), int, int, void*);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, unsigned, int64_t, uint64_t,
                                                                    uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                                                                    uint64_t, uint64_t));
void qemu_plugin_reset(qemu_plugin_id_t, void (*)(qemu_plugin_id_t));  // forgets what is registered and translated
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void*), void*);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb*, size_t);
const void* qemu_plugin_insn_data(const struct qemu_plugin_insn*);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn*);
void* qemu_plugin_insn_haddr(const struct qemu_plugin_insn*);
_Bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 1;
