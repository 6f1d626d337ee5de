/* An OpenCL library between a program and the real one: counts what is created and not released, and can lose the
 * device. Build: cc -shared -fPIC -o libshim.so opencl_shim.c -ldl; with -DOLD it is one of OpenCL 1.1.
 *
 * SHIM_LIBRARY     the real library, libOpenCL.so.1 by default
 * SHIM_COUNTS      file of fourteen 64-bit numbers, which are counted up: buffers and images created and released, programs
 *                  created and released, kernels created and released, programs made from source, launches, mappings begun and
 *                  ended, copies between host and device, flushes, images
 *                  created, calls
 * SHIM_LOSE_AFTER  launches after which every call says that the device is gone
 * SHIM_FAIL_CALL   the call that fails, as when the device is gone: 1 is the first
 * SHIM_FAIL_REST   set where all calls after that one fail, too
 * SHIM_NO_DEVICES  set where no driver has a device
 * SHIM_BUSY        set where no device is available
 * SHIM_MEMORY      bytes of the largest buffer that there is memory for
 * SHIM_NO_BUILD    set where no program compiles
 * SHIM_DISCRETE    set where the device says that it has a memory of its own
 * SHIM_NO_MAP      mappings after which none works any more
 * SHIM_MOVES       mappings after which each is somewhere else than the last one; nobody may touch the last one then
 * SHIM_NO_UNMAP    mappings ended after which ending one fails, once
 * SHIM_KEEP        set where what is released is kept until the program ends, so that no other buffer takes its place
 * SHIM_DRIVER      what the devices say of their driver
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LOST = -5 /* CL_OUT_OF_RESOURCES, as drivers say it */, NO_MEMORY = -4, NOT_BUILT = -11, NOT_MAPPED = -12 };

#ifdef OLD
enum { IS_OLD = 1 };
#else
enum { IS_OLD = 0 };
#endif

static void *real(const char *name) {
  static void *library;
  if (!library) {
    const char *path = getenv("SHIM_LIBRARY");
    library = dlopen(path ? path : "libOpenCL.so.1", RTLD_NOW);
    if (!library) abort();
  }
  void *found = dlsym(library, name);
  if (!found) abort();
  return found;
}

enum { BUFFERS, BUFFERS_FREED, PROGRAMS, PROGRAMS_FREED, KERNELS, KERNELS_FREED, SOURCES, LAUNCHES, MAPS, UNMAPS, COPIES, FLUSHES, IMAGES, CALLS, NUMBERS };

static int64_t unseen[NUMBERS], *numbers = unseen;

/* Mapped, so that it is right however the process ends. */
__attribute__((constructor)) static void open_counts(void) {
  const char *path = getenv("SHIM_COUNTS");
  const int file = path ? open(path, O_RDWR | O_CREAT, 0644) : -1;
  if (file < 0) return;
  if (ftruncate(file, sizeof(unseen)) == 0) {
    void *mapped = mmap(NULL, sizeof(unseen), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) numbers = mapped;
  }
  close(file);
}

static void add(int number) { __atomic_add_fetch(&numbers[number], 1, __ATOMIC_SEQ_CST); }

static int is_lost(void) {
  const char *after = getenv("SHIM_LOSE_AFTER");
  return after && numbers[LAUNCHES] >= atol(after);
}

/* Counts a call, and says whether it is one that fails. */
static int fails(void) {
  const char *which = getenv("SHIM_FAIL_CALL");
  const int64_t call = __atomic_add_fetch(&numbers[CALLS], 1, __ATOMIC_SEQ_CST);
  return which && (call == atol(which) || (call > atol(which) && getenv("SHIM_FAIL_REST")));
}

/* Calls that are handed on as they are: all arguments fit into registers and stack slots of one word. */
#define PASS(name)                                                                                                     \
  intptr_t name(intptr_t a, intptr_t b, intptr_t c, intptr_t d, intptr_t e, intptr_t f, intptr_t g, intptr_t h,        \
                intptr_t i) {                                                                                          \
    typedef intptr_t (*Call)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t,           \
                             intptr_t);                                                                                \
    if (fails()) return LOST;                                                                                          \
    return ((Call)real(#name))(a, b, c, d, e, f, g, h, i);                                                             \
  }
PASS(clGetPlatformIDs)
PASS(clGetPlatformInfo)
PASS(clEnqueueCopyBuffer)
PASS(clGetProgramInfo)
PASS(clGetProgramBuildInfo)
PASS(clSetKernelArg)
PASS(clGetKernelWorkGroupInfo)

int32_t clGetDeviceIDs(void *platform, uint64_t type, uint32_t count, void **devices, uint32_t *found) {
  if (fails()) return LOST;
  if (getenv("SHIM_NO_DEVICES")) return -1; /* CL_DEVICE_NOT_FOUND */
  return ((int32_t(*)(void *, uint64_t, uint32_t, void **, uint32_t *))real("clGetDeviceIDs"))(platform, type, count,
                                                                                               devices, found);
}

void *clCreateContext(const intptr_t *about, uint32_t count, void **devices, void *notify, void *own, int32_t *status) {
  if (fails()) return *status = LOST, NULL;
  return ((void *(*)(const intptr_t *, uint32_t, void **, void *, void *, int32_t *))real("clCreateContext"))(
      about, count, devices, notify, own, status);
}

void *clCreateCommandQueue(void *context, void *device, uint64_t about, int32_t *status) {
  if (fails()) return *status = LOST, NULL;
  return ((void *(*)(void *, void *, uint64_t, int32_t *))real("clCreateCommandQueue"))(context, device, about, status);
}

static int32_t told(const char *text, size_t size, void *value, size_t *needed) {
  if (needed) *needed = strlen(text) + 1;
  if (value && size > strlen(text)) strcpy(value, text);
  return 0;
}

int32_t clGetDeviceInfo(void *device, uint32_t what, size_t size, void *value, size_t *needed) {
  enum { HOST_UNIFIED_MEMORY = 0x1035, DRIVER = 0x102D, VERSION = 0x102F, HALF_FP_CONFIG = 0x1033, AVAILABLE = 0x1027 };
  if (fails()) return LOST;
  const int32_t status = ((int32_t(*)(void *, uint32_t, size_t, void *, size_t *))real("clGetDeviceInfo"))(
      device, what, size, value, needed);
  if (IS_OLD && what == VERSION && value) memcpy(value, "OpenCL 1.1", 11);
  if (what == DRIVER && getenv("SHIM_DRIVER")) return told(getenv("SHIM_DRIVER"), size, value, needed);
  if (what == AVAILABLE && value && getenv("SHIM_BUSY")) *(uint32_t *)value = 0;
  if (what == HALF_FP_CONFIG && value && getenv("SHIM_SMALL_HALVES")) *(uint64_t *)value |= 1;
  if (what == HOST_UNIFIED_MEMORY && value && getenv("SHIM_DISCRETE")) *(uint32_t *)value = 0;
  return status;
}

void *clCreateBuffer(void *context, uint64_t flags, size_t size, void *host, int32_t *status) {
  const char *memory = getenv("SHIM_MEMORY");
  if (fails()) return *status = LOST, NULL;
  if (memory && size > strtoull(memory, NULL, 10)) {
    *status = NO_MEMORY;
    return NULL;
  }
  void *made = ((void *(*)(void *, uint64_t, size_t, void *, int32_t *))real("clCreateBuffer"))(context, flags, size,
                                                                                                   host, status);
  if (made) add(BUFFERS);
  return made;
}

#ifndef OLD
void *clCreateImage(void *context, uint64_t flags, const void *format, const void *about, void *host,
                    int32_t *status) {
  if (fails()) return *status = LOST, NULL;
  void *made = ((void *(*)(void *, uint64_t, const void *, const void *, void *, int32_t *))real("clCreateImage"))(
      context, flags, format, about, host, status);
  if (made) {
    add(BUFFERS);
    add(IMAGES);
  }
  return made;
}
#endif

void *clCreateProgramWithSource(void *context, uint32_t count, const char **texts, const size_t *sizes,
                                int32_t *status) {
  if (fails()) return *status = LOST, NULL;
  add(SOURCES);
  add(PROGRAMS);
  return ((void *(*)(void *, uint32_t, const char **, const size_t *, int32_t *))real("clCreateProgramWithSource"))(
      context, count, texts, sizes, status);
}

void *clCreateProgramWithBinary(void *context, uint32_t count, void **devices, const size_t *sizes,
                                const unsigned char **binaries, int32_t *each, int32_t *status) {
  if (fails()) return *status = LOST, NULL;
  void *made =
      ((void *(*)(void *, uint32_t, void **, const size_t *, const unsigned char **, int32_t *, int32_t *))real(
          "clCreateProgramWithBinary"))(context, count, devices, sizes, binaries, each, status);
  if (made) add(PROGRAMS);
  return made;
}

void *clCreateKernel(void *program, const char *name, int32_t *status) {
  if (fails()) return *status = LOST, NULL;
  void *made = ((void *(*)(void *, const char *, int32_t *))real("clCreateKernel"))(program, name, status);
  if (made) add(KERNELS);
  return made;
}

int32_t clReleaseMemObject(void *object) {
  if (fails()) return LOST;
  add(BUFFERS_FREED);
  if (getenv("SHIM_KEEP")) return 0;
  return ((int32_t(*)(void *))real("clReleaseMemObject"))(object);
}

int32_t clReleaseProgram(void *object) {
  if (fails()) return LOST;
  add(PROGRAMS_FREED);
  return ((int32_t(*)(void *))real("clReleaseProgram"))(object);
}

int32_t clReleaseKernel(void *object) {
  if (fails()) return LOST;
  add(KERNELS_FREED);
  return ((int32_t(*)(void *))real("clReleaseKernel"))(object);
}

int32_t clEnqueueNDRangeKernel(void *queue, void *kernel, uint32_t dimensions, const size_t *offset,
                               const size_t *global, const size_t *local, uint32_t count, void **events, void **event) {
  if (fails() || is_lost()) return LOST;
  add(LAUNCHES);
  return ((int32_t(*)(void *, void *, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t, void **,
                      void **))real("clEnqueueNDRangeKernel"))(queue, kernel, dimensions, offset, global, local, count,
                                                               events, event);
}

int32_t clBuildProgram(void *program, uint32_t count, void **devices, const char *options, void *done, void *own) {
  if (fails()) return LOST;
  if (getenv("SHIM_NO_BUILD")) return NOT_BUILT;
  return ((int32_t(*)(void *, uint32_t, void **, const char *, void *, void *))real("clBuildProgram"))(
      program, count, devices, options, done, own);
}

/* Memory that stands for what a driver maps, where that is to be elsewhere each time. */
static struct Moved {
  void *there, *here;
  size_t size;
} moved[64];

static void *move(void *there, size_t size) {
  for (int i = 0; i < 64; ++i) {
    if (moved[i].here) continue;
    void *here = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (here == MAP_FAILED) abort();
    moved[i] = (struct Moved){there, here, size};
    return memcpy(moved[i].here, there, size);
  }
  abort();
}

void *clEnqueueMapBuffer(void *queue, void *buffer, uint32_t wait, uint64_t how, size_t offset, size_t size,
                         uint32_t count, void **events, void **event, int32_t *status) {
  const char *most = getenv("SHIM_NO_MAP"), *still = getenv("SHIM_MOVES");
  enum { WRITE_INVALIDATE = 4, INVALID_VALUE = -30 };
  *status = fails() || is_lost() ? LOST : IS_OLD && how >= WRITE_INVALIDATE ? INVALID_VALUE : most && numbers[MAPS] >= atol(most) ? NOT_MAPPED : 0;
  if (*status) return NULL;
  add(MAPS);
  void *there = ((void *(*)(void *, void *, uint32_t, uint64_t, size_t, size_t, uint32_t, void **, void **,
                            int32_t *))real("clEnqueueMapBuffer"))(queue, buffer, wait, how, offset, size, count,
                                                                   events, event, status);
  return there && still && numbers[MAPS] > atol(still) ? move(there, size) : there;
}

int32_t clEnqueueUnmapMemObject(void *queue, void *object, void *mapped, uint32_t count, void **events, void **event) {
  const char *ended = getenv("SHIM_NO_UNMAP");
  static int failed;
  if (fails() || is_lost()) return LOST;
  if (ended && numbers[UNMAPS] >= atol(ended) && !failed++) return LOST;
  add(UNMAPS);
  for (int i = 0; i < 64; ++i) {
    if (!mapped || moved[i].here != mapped) continue;
    memcpy(moved[i].there, mapped, moved[i].size);
    mprotect(mapped, moved[i].size, PROT_NONE); /* it stays taken: the next one is to be elsewhere */
    mapped = moved[i].there;
    moved[i].here = NULL;
  }
  return ((int32_t(*)(void *, void *, void *, uint32_t, void **, void **))real("clEnqueueUnmapMemObject"))(
      queue, object, mapped, count, events, event);
}

int32_t clEnqueueWriteBuffer(void *queue, void *buffer, uint32_t wait, size_t offset, size_t size, const void *from,
                             uint32_t count, void **events, void **event) {
  if (fails() || is_lost()) return LOST;
  add(COPIES);
  return ((int32_t(*)(void *, void *, uint32_t, size_t, size_t, const void *, uint32_t, void **, void **))real(
      "clEnqueueWriteBuffer"))(queue, buffer, wait, offset, size, from, count, events, event);
}

int32_t clFlush(void *queue) {
  if (fails()) return LOST;
  add(FLUSHES);
  return ((int32_t(*)(void *))real("clFlush"))(queue);
}

int32_t clEnqueueReadBuffer(void *queue, void *buffer, uint32_t wait, size_t offset, size_t size, void *to,
                            uint32_t count, void **events, void **event) {
  if (fails() || is_lost()) return LOST;
  add(COPIES);
  return ((int32_t(*)(void *, void *, uint32_t, size_t, size_t, void *, uint32_t, void **, void **))real(
      "clEnqueueReadBuffer"))(queue, buffer, wait, offset, size, to, count, events, event);
}

int32_t clFinish(void *queue) {
  return fails() || is_lost() ? LOST : ((int32_t(*)(void *))real("clFinish"))(queue);
}
