// The functions of the module for the host: see toolchain/native/steps.py.
#include "../steps/host.h"
#include "sounds.h"

extern "C" {

// Each returns 0, or 1 with the reason in `text`.
HOST_API int sounds_create(const sounds::Plan* plan, sounds::Pipeline** pipeline, sounds::Reason* reason) {
  if (!CheckPlan(*plan, reason)) return 1;
  *pipeline = new sounds::Pipeline(*plan);
  return 0;
}

HOST_API void sounds_close(sounds::Pipeline* pipeline) { delete pipeline; }

// The sound must stay in memory until the last call of sounds_prepare.
HOST_API int sounds_open(sounds::Pipeline* pipeline, const sounds::Sound* sound, int32_t* windows,
                         sounds::Reason* reason) {
  return pipeline->Open(*sound, windows, reason) ? 0 : 1;
}

HOST_API int sounds_prepare(sounds::Pipeline* pipeline, int64_t window, void* input, size_t bytes,
                            sounds::Reason* reason) {
  return pipeline->Prepare(window, input, bytes, reason) ? 0 : 1;
}

// The objects stay valid until the next call.
HOST_API int sounds_find(sounds::Pipeline* pipeline, int64_t window, const float* output, size_t count,
                         const sounds::Object** objects, size_t* found, sounds::Reason* reason) {
  if (!pipeline->Find(window, output, count, reason)) return 1;
  *objects = pipeline->objects().data();
  *found = pipeline->objects().size();
  return 0;
}
}
