/* Checks of streams: a C ABI. See verify.h for what is checked. */
#ifndef VTA_STREAM_C_H_
#define VTA_STREAM_C_H_

#include <stddef.h>
#include <stdint.h>

#include "vta_sim.h" /* VTA_API */

#ifdef __cplusplus
extern "C" {
#endif

/* Returns 0 where a stream may run; otherwise it writes one sentence, cut to `error_size` with its
 * final zero, to `error`. Nothing is run, and nothing is kept. */
VTA_API int vta_stream_verify(const uint8_t* blob, uint64_t size, char* error, size_t error_size);

#ifdef __cplusplus
}
#endif

#endif /* VTA_STREAM_C_H_ */
