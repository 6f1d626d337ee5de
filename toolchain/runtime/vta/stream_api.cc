// See vta_stream.h.
#include "vta_stream.h"

#include <cstdio>
#include <exception>

#include "stream.h"
#include "verify.h"

int vta_stream_verify(const uint8_t* blob, uint64_t size, char* error, size_t error_size) {
  try {
    vta::Verify(vta::ParseStream(blob, static_cast<size_t>(size)));
    return 0;
  } catch (const std::exception& fault) {  // no exception may pass a C caller
    snprintf(error, error_size, "%s", fault.what());
    return 1;
  }
}
