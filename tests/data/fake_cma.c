/* PYNQ's library of contiguous memory, for tests: one buffer, and a log of what is done to it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void tell(const char* what, unsigned long first, long second) {
  FILE* log = fopen(getenv("FAKE_CMA_LOG"), "a");
  fprintf(log, "%s 0x%lx %ld\n", what, first, second);
  fclose(log);
}

void* cma_alloc(uint32_t bytes, uint32_t cached) {
  tell("alloc", bytes, cached);
  return bytes > (1u << 24) ? (void*)-1 : malloc(bytes);
}

unsigned long cma_get_phy_addr(void* data) { return data != NULL ? 0x1e000000 : 0; }

void cma_free(void* data) {
  tell("free", 0, 0);
  free(data);
}

void cma_flush_cache(void* data, unsigned int physical, int bytes) {
  tell("flush", physical, data != NULL ? bytes : 0);
}

void cma_invalidate_cache(void* data, unsigned int physical, int bytes) {
  tell("invalidate", physical, data != NULL ? bytes : 0);
}
