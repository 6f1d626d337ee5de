// The functions of the module for the host: see toolchain/native/steps.py.
#include "../steps/host.h"
#include "decoder.h"
#include "pictures.h"

using pictures::Decoder;
using pictures::Pipeline;
using pictures::Plan;
using pictures::Reason;

extern "C" {

// Each returns 0, or 1 with the reason in `text`.
HOST_API int pictures_open(const Plan* plan, Pipeline** pipeline, Reason* reason) {
  if (!CheckPlan(*plan, reason)) return 1;
  *pipeline = new Pipeline(*plan);
  return 0;
}

HOST_API void pictures_close(Pipeline* pipeline) { delete pipeline; }

// Decodes a JPEG or PNG file, whose pixels stay valid until the next call of `decoder`, which makes one where it is
// null. 2: this machine has no library for it, and the file's header is as it should be.
HOST_API int pictures_decode(Decoder** decoder, const pictures::Picture* file, pictures::Picture* pixels,
                             Reason* reason) {
  if (!ReadHeader(*file, &pixels->width, &pixels->height, reason)) return 1;
  if (*decoder == nullptr) *decoder = new Decoder();
  if (!(*decoder)->Open(file->format, reason)) return 2;
  return (*decoder)->Decode(*file, pixels, reason) ? 0 : 1;
}

// Whether this machine has the library for a format.
HOST_API int pictures_has(Decoder** decoder, int32_t format) {
  Reason reason;
  if (*decoder == nullptr) *decoder = new Decoder();
  return (*decoder)->Open(format, &reason) ? 1 : 0;
}

HOST_API void pictures_forget(Decoder* decoder) { delete decoder; }

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
