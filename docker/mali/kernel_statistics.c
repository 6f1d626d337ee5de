// Compiles OpenCL C for a Mali GPU that is not there: Mesa's compiler runs on a device node without a device, and prints
// its statistics of each kernel. Everything goes to standard error, where Mesa writes, so that the order stays.
//
//   kernel_statistics [OPTION_OF_THE_COMPILER...] -- FILE...
//
// One kernel a file. For each: FILE path, Mesa's lines, then KERNEL name and its largest work-group, or FAILED and the log.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 0x1190, LOG = 0x1183, WORK_GROUP = 0x11B0, LOCAL_MEMORY = 0x11B2, MOST = 16, LOG_BYTES = 1 << 14 };

typedef void *Handle;

static Handle library;
static Handle device;

static void end(int code, const char *cause) {
  fprintf(stderr, "ENDED %s\n", cause);
  exit(code);
}

static void *function(const char *name) {
  void *found = dlsym(library, name);
  if (!found) end(2, name);
  return found;
}

static char *content(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) end(2, path);
  *size = (size_t)ftell(file);
  rewind(file);
  char *text = malloc(*size + 1);
  if (!text || fread(text, 1, *size, file) != *size) end(2, path);
  text[*size] = 0;
  fclose(file);
  return text;
}

static void find_device(void) {
  int32_t (*platforms)(uint32_t, Handle *, uint32_t *) = function("clGetPlatformIDs");
  int32_t (*devices)(Handle, uint64_t, uint32_t, Handle *, uint32_t *) = function("clGetDeviceIDs");
  Handle found[MOST];
  uint32_t count = 0, there = 0;
  platforms(MOST, found, &count);
  for (uint32_t i = 0; i < count && i < MOST && !device; i++)
    if (devices(found[i], 0xFFFFFFFF, 1, &device, &there) != 0 || !there) device = NULL;
  if (!device) end(3, "no device");
}

static void describe(Handle program) {
  int32_t (*create)(Handle, uint32_t, Handle *, uint32_t *) = function("clCreateKernelsInProgram");
  int32_t (*info)(Handle, uint32_t, size_t, void *, size_t *) = function("clGetKernelInfo");
  int32_t (*limits)(Handle, Handle, uint32_t, size_t, void *, size_t *) = function("clGetKernelWorkGroupInfo");
  Handle kernels[MOST];
  uint32_t count = 0;
  if (create(program, MOST, kernels, &count)) count = 0;
  for (uint32_t i = 0; i < count && i < MOST; i++) {
    char name[256] = "";
    size_t largest = 0;
    uint64_t local = 0;
    info(kernels[i], NAME, sizeof name, name, NULL);
    limits(kernels[i], device, WORK_GROUP, sizeof largest, &largest, NULL);
    limits(kernels[i], device, LOCAL_MEMORY, sizeof local, &local, NULL);
    fprintf(stderr, "KERNEL %s %zu %llu\n", name, largest, (unsigned long long)local);
  }
}

static void compile(Handle context, const char *path, const char *options) {
  Handle (*create)(Handle, uint32_t, const char **, size_t *, int32_t *) = function("clCreateProgramWithSource");
  int32_t (*build)(Handle, uint32_t, Handle *, const char *, void *, void *) = function("clBuildProgram");
  int32_t (*info)(Handle, Handle, uint32_t, size_t, void *, size_t *) = function("clGetProgramBuildInfo");
  size_t size;
  const char *text = content(path, &size);
  int32_t status;
  fprintf(stderr, "FILE %s\n", path);
  Handle program = create(context, 1, &text, &size, &status);
  if (!status) status = build(program, 1, &device, options, NULL, NULL);
  if (status) {
    static char log[LOG_BYTES];
    info(program, device, LOG, sizeof log - 1, log, NULL);
    fprintf(stderr, "FAILED %d\n%s\n", status, log);
  } else {
    describe(program);
  }
  fprintf(stderr, "DONE\n");
}

int main(int count, char **words) {
  char options[4096] = "";
  int at = 1;
  for (; at < count && strcmp(words[at], "--"); at++) {
    if (strlen(options) + strlen(words[at]) + 2 > sizeof options) end(2, "too many options");
    strcat(strcat(options, words[at]), " ");
  }
  library = dlopen("libOpenCL.so.1", RTLD_NOW);
  if (!library) end(2, dlerror());
  find_device();
  Handle (*create)(void *, uint32_t, Handle *, void *, void *, int32_t *) = function("clCreateContext");
  int32_t status;
  Handle context = create(NULL, 1, &device, NULL, NULL, &status);
  if (status) end(3, "no context");
  for (at++; at < count; at++) compile(context, words[at], options);
  return 0;
}
