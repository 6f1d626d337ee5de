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
HOST_API int pictures_open(const Plan* plan, const float* table, size_t numbers, Pipeline** pipeline, Reason* reason) {
  if (!CheckPlan(*plan, reason) || !CheckTable(*plan, numbers, reason)) return 1;
  *pipeline = new Pipeline(*plan, table);
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

// `levels` is as long as the plan's, or null. The objects stay valid until the next call.
HOST_API int pictures_find(Pipeline* pipeline, int32_t width, int32_t height, const pictures::Values* levels,
                           const float* boxes, size_t box_count, const float* scores, size_t count,
                           const pictures::Object** objects, size_t* found, Reason* reason) {
  if (!pipeline->Find(width, height, {scores, count, boxes, box_count, levels}, reason)) return 1;
  *objects = pipeline->objects().data();
  *found = pipeline->objects().size();
  return 0;
}

// The key points of the objects that were found last.
HOST_API void pictures_points(Pipeline* pipeline, const pictures::Point** points, size_t* count) {
  *points = pipeline->points().data();
  *count = pipeline->points().size();
}

// The pixels of the mask of such an object, and the mask, unless it is null.
HOST_API int pictures_mask(Pipeline* pipeline, size_t object, const float* prototypes, size_t count,
                           pictures::Area* area, uint8_t* mask, Reason* reason) {
  if (object >= pipeline->objects().size()) return reason->Is("there is no such object") ? 0 : 1;
  *area = pipeline->MaskArea(object);
  const size_t stride = static_cast<size_t>(area->width);
  return mask == nullptr || pipeline->FillMask(object, prototypes, count, mask, stride, reason) ? 0 : 1;
}
}
