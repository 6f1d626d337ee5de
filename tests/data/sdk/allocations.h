/* Counts the allocations of all threads. Included by programs of tests, once each. */
#ifndef ALLOCATIONS_H_
#define ALLOCATIONS_H_

#include <errno.h>
#include <stddef.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static long allocations;

static void counted(void) { __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED); }

void* malloc(size_t size) { return counted(), __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return counted(), __libc_calloc(count, size); }
void* realloc(void* memory, size_t size) { return counted(), __libc_realloc(memory, size); }
void* memalign(size_t alignment, size_t size) { return counted(), __libc_memalign(alignment, size); }
void* aligned_alloc(size_t alignment, size_t size) { return counted(), __libc_memalign(alignment, size); }
int posix_memalign(void** memory, size_t alignment, size_t size) {
  counted();
  *memory = __libc_memalign(alignment, size);
  return *memory == NULL ? ENOMEM : 0;
}

#endif
