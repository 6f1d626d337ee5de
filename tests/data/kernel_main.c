// Calls one kernel of a TVM object file, on a machine that has no TVM: its arguments come from a file.
//
// The file holds for each argument: type code, bits, dimensions and bytes as int64, the sizes, the contents.
// The last argument is written to the second file.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} Tensor;

typedef struct {
  int32_t type_index, padding;
  union {
    Tensor* tensor;
    int64_t bits;
  };
} Any;

typedef struct {
  void* sync_handle;
  int32_t num_task;
} Environment;

typedef int (*Task)(int, Environment*, void*);

enum { kCpu = 1, kTensorPointer = 7, kMost = 16, kTasks = 2 };

extern int __tvm_ffi_main(void* self, const Any* arguments, int32_t count, Any* result);
void *__TVMBackendParallelLaunch, *__TVMBackendAllocWorkspace, *__TVMBackendFreeWorkspace;

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int32_t i = 0; i < count; ++i) fputs(parts[i], stderr);
}

static int launch(Task task, void* closure, int wanted) {
  Environment environment = {NULL, wanted ? wanted : kTasks};
  int status = 0;
  for (int i = 0; i < environment.num_task; ++i) status |= task(i, &environment, closure);
  return status;
}

static void* allocate(int type, int id, uint64_t bytes, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static int release(int type, int id, void* memory) {
  (void)type, (void)id;
  free(memory);
  return 0;
}

int main(int argc, char** argv) {
  FILE* input = argc == 3 ? fopen(argv[1], "rb") : NULL;
  Tensor tensors[kMost];
  Any arguments[kMost], result = {0, 0, NULL};
  int64_t header[4], bytes = 0;
  int count = 0;
  if (!input) return 2;
  for (; count < kMost && fread(header, sizeof(int64_t), 4, input) == 4; ++count) {
    Tensor* own = &tensors[count];
    bytes = header[3];
    *own = (Tensor){allocate(0, 0, bytes, 0, 0), kCpu, 0, header[2], header[0], header[1], 1, NULL, NULL, 0};
    own->shape = malloc(own->ndim * sizeof(int64_t));
    if (fread(own->shape, sizeof(int64_t), own->ndim, input) != (size_t)own->ndim) return 3;
    if (fread(own->data, 1, bytes, input) != (size_t)bytes) return 3;
    arguments[count] = (Any){kTensorPointer, 0, own};
  }
  __TVMBackendParallelLaunch = (void*)launch;
  __TVMBackendAllocWorkspace = (void*)allocate;
  __TVMBackendFreeWorkspace = (void*)release;
  if (__tvm_ffi_main(NULL, arguments, count, &result)) return 4;
  FILE* output = fopen(argv[2], "wb");
  if (!output || fwrite(tensors[count - 1].data, 1, bytes, output) != (size_t)bytes) return 5;
  return fclose(output);
}
