// The module as a library of the host, which computes the reference of a release with it: see
// toolchain/native/pictures.py. It is linked without a C++ library, which takes minutes to build once.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "pictures.h"

using pictures::Pipeline;
using pictures::Plan;
using pictures::Reason;

void* operator new(size_t size) {
  void* memory = malloc(size);
  if (memory == nullptr) abort();
  return memory;
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }

#ifdef _LIBCPP_VERSION
// What libc++'s templates call instead of an exception.
_LIBCPP_BEGIN_NAMESPACE_STD
[[noreturn]] void __libcpp_verbose_abort(const char*, ...) noexcept { abort(); }
_LIBCPP_END_NAMESPACE_STD
#endif

extern "C" {

#define HOST_API __attribute__((visibility("default")))

// Each returns 0, or 1 with the reason in `text`.
HOST_API int pictures_open(const Plan* plan, Pipeline** pipeline, Reason* reason) {
  if (!CheckPlan(*plan, reason)) return 1;
  *pipeline = new Pipeline(*plan);
  return 0;
}

HOST_API void pictures_close(Pipeline* pipeline) { delete pipeline; }

HOST_API int pictures_prepare(Pipeline* pipeline, const pictures::Picture* picture, void* input,
                              size_t bytes, Reason* reason) {
  return pipeline->Prepare(*picture, input, bytes, reason) ? 0 : 1;
}

// The objects stay valid until the next call.
HOST_API int pictures_find(Pipeline* pipeline, int32_t width, int32_t height, const float* output,
                           size_t count, const pictures::Object** objects, size_t* found, Reason* reason) {
  if (!pipeline->Find(width, height, output, count, reason)) return 1;
  *objects = pipeline->objects().data();
  *found = pipeline->objects().size();
  return 0;
}
}
