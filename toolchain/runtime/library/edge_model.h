/* Runs a release of this toolchain inside of an application. C99, and C++.
 *
 *   edge_model* model;
 *   if (edge_open("/home/me/.local/share/edge-toolchain/current", NULL, &model) != EDGE_OK) {
 *     fprintf(stderr, "%s\n", edge_error());
 *   }
 *
 * Threads: a model is used by one thread at a time; two models may run on two threads. Models of a
 * process whose options of threads agree share these threads, which sleep when there is nothing to do, and
 * end when the last of these models is closed.
 * Nothing here prints, ends the process, handles signals, or changes its environment, folder or
 * affinity. A process that forks must open its models after that.
 */
#ifndef EDGE_MODEL_H_
#define EDGE_MODEL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. What is added later leaves it as it is. */
#define EDGE_ABI 1

#if defined(EDGE_BUILDING)
#define EDGE_API __attribute__((visibility("default")))
#else
#define EDGE_API
#endif

/* What each function returns, unless it says something else: 0, or why not. */
enum {
  EDGE_OK = 0,
  EDGE_USAGE = 2,   /* the call is wrong: an argument, or more threads than there are CPUs */
  EDGE_RELEASE = 3, /* the release, or a saved state, is damaged, incomplete or none */
  EDGE_UNFIT = 4,   /* the release does not fit this device or this library, or a state the release */
  EDGE_FAILED = 5,  /* the model failed while it ran */
  EDGE_UNTRUSTED = 7 /* the device takes signed releases only, and this is none that it takes */
};

/* A release that is open. */
typedef struct edge_model edge_model;

enum { EDGE_ALL_CPUS = -1, EDGE_NO_SPIN = -1 };

/* How the application's own threads compute: calls task(data, i) for each i from 0 to count - 1, on any
 * threads, the calling one included, and returns when all calls have returned. It must not throw. */
typedef void (*edge_task)(void* data, int32_t number);
typedef void (*edge_executor)(void* context, edge_task task, void* data, int32_t count);

/* How a model runs. Zeros are the usual ways; EDGE_OPTIONS has them. */
typedef struct edge_options {
  size_t size;     /* sizeof(edge_options) */
  int32_t threads; /* with the calling one; 0: that one alone; EDGE_ALL_CPUS: one for each CPU that
                      the process may use */
  int32_t pin;     /* 1: each thread but the calling one stays on a CPU of its own, the fastest first */
  int32_t spin_us; /* how long an idle thread looks for work before it sleeps, in microseconds;
                      0: 1000; EDGE_NO_SPIN: not at all */
  const char* trust; /* the folder that says whose signed releases are opened, and no others;
                        NULL: /etc/edge-toolchain. Without a file `trusted` there, any release */
  int32_t priority;  /* of its own threads: 0: that of the caller of edge_open; 1 to 99: SCHED_FIFO with
                        that priority, EDGE_USAGE where the process may not have it */
  int32_t cpu_count; /* of `cpus` */
  const int32_t* cpus; /* the CPUs that its own threads stay on; with `pin` thread n stays on cpus[n],
                          and cpus[0] is left to the calling one. NULL: those of the process */
  edge_executor executor; /* computes instead of threads of its own, of which there are none then;
                             `threads` says how many calls there are. Without priority, pin and cpus */
  void* executor_context; /* its first argument */
  int32_t own_threads; /* 1: shares its threads with no other model of the process. 0: shares them with those whose
                          threads, pin, spin_us, priority, cpus and executor are the same */
} edge_options;

#define EDGE_OPTIONS {sizeof(edge_options), 0, 0, 0, NULL, 0, 0, NULL, NULL, NULL, 0}

/* An input or an output. Its memory is the model's, contiguous and row by row. */
typedef struct edge_tensor {
  size_t size;          /* sizeof(edge_tensor) */
  const char* name;     /* as in the model's file */
  const char* dtype;    /* as numpy names it: "float32"; "bfloat16" as 16 bits */
  int32_t rank;         /* number of dimensions; 0 is a single number */
  const int64_t* shape; /* `rank` extents */
  void* data;           /* aligned to 64 bytes; of an output before the first run, and of one that is
                           a state after edge_step: NULL */
  size_t bytes;
  int32_t bound_axis; /* where an output's size depends on the data, its axis, else -1 */
  int64_t valid;      /* and how many of that axis' elements are the result of the last run */
  int32_t state;      /* of an input that is a state: the number of the output that is its next value;
                         of such an output: that of the input; else -1 */
} edge_tensor;

#define EDGE_TENSOR {sizeof(edge_tensor), NULL, NULL, 0, NULL, NULL, 0, -1, 0, -1}

/* What is open. */
typedef struct edge_release {
  size_t size;        /* sizeof(edge_release) */
  const char* name;   /* the model's */
  const char* digest; /* 64 hexadecimal digits; "" where the folder is not one of a device's store */
  const char* folder; /* where it lies, without links */
  int64_t sequence;   /* the number that its signers gave it; 0 where nobody was asked for */
  const char* weights; /* where they are: "file" without signatures; of signed releases "fs-verity", or memory
                          that nobody can change: "sealed", which other processes of this user may share,
                          "shared" with one of them, or a "copy" of its own */
} edge_release;

#define EDGE_RELEASE_INFO {sizeof(edge_release), NULL, NULL, NULL, 0, NULL}

/* Formats of pictures: raw ones of 8 bits, as cameras deliver them, and files. */
enum {
  EDGE_RGB = 1,
  EDGE_BGR = 2,
  EDGE_RGBA = 3, /* the fourth byte is ignored */
  EDGE_GRAY = 4,
  EDGE_NV12 = 5, /* BT.601, levels 16 to 235; a second plane of pairs U, V for 2x2 pixels */
  EDGE_YUYV = 6, /* the same levels; Y, U, Y, V for two pixels */
  EDGE_JPEG = 7, /* the bytes of a file, which libturbojpeg of this device decodes: baseline or progressive, gray or
                    in colour. EDGE_UNFIT where the device has no such library */
  EDGE_PNG = 8   /* the same, by libpng: up to 8 bits for a level; alpha is ignored */
};

/* A picture in the caller's memory, which is read during the call only. */
typedef struct edge_image {
  size_t size;    /* sizeof(edge_image) */
  int32_t format; /* EDGE_RGB to EDGE_PNG */
  int32_t width;  /* pixels: at most 32768 in each direction, and 2^26 altogether; of a file 0, as it says its size */
  int32_t height; /* itself, and so are its strides and chroma */
  const void* data;
  size_t bytes;         /* of `data`: as many as size and stride need */
  size_t stride;        /* bytes from a row to the next one; 0: rows without gaps */
  const void* chroma;   /* NV12: the second plane; NULL: in `data`, after the first */
  size_t chroma_bytes;  /* of `chroma`; 0 where that is NULL */
  size_t chroma_stride; /* NV12: 0 for that of the first plane, rounded up to pairs */
} edge_image;

#define EDGE_IMAGE {sizeof(edge_image), 0, 0, 0, NULL, 0, 0, NULL, 0, 0}

/* Formats of sounds. */
enum {
  EDGE_WAV = 1,       /* the bytes of a WAV file: PCM of 8, 16, 24 or 32 bits, or floats of 32 or 64 */
  EDGE_PCM16 = 2,     /* signed samples of 16 bits, as microphones deliver them */
  EDGE_PCM_FLOAT = 3  /* floats of 32 bits, from -1 to 1 */
};

/* A sound in the caller's memory, which is read during the call only. Samples are little-endian, and those of
 * several channels alternate: the model hears their mean. */
typedef struct edge_audio {
  size_t size;      /* sizeof(edge_audio) */
  int32_t format;   /* EDGE_WAV to EDGE_PCM_FLOAT */
  int32_t rate;     /* samples of a second; 0 for EDGE_WAV, which says it itself */
  int32_t channels; /* at most 64; 0 for EDGE_WAV */
  const void* data;
  size_t bytes;     /* of `data` */
} edge_audio;

#define EDGE_AUDIO {sizeof(edge_audio), 0, 0, 0, NULL, 0}

/* A key point of an object, in pixels of the picture, and how sure it is that it can be seen. */
typedef struct edge_point {
  float x, y;
  float score;
} edge_point;

/* A class of a picture, or a box in it; or a class of a sound's window, or a label that was heard. */
typedef struct edge_object {
  int32_t number;    /* of the class, from 0 */
  float score;
  float left, top;   /* corners in pixels of the picture; zeros of a class without a box. Of a sound, it lies */
  float right, bottom; /* from second `left` to second `right` */
  const char* label; /* "" where the release has none */
  int32_t point_count; /* of `points`; 0 where the release has none */
  const edge_point* points;
} edge_object;

/* What was found, the best first; of a sound, those of its windows in their order, or the labels of a text. It is
 * the model's memory, valid until its next run. */
typedef struct edge_objects {
  size_t size; /* sizeof(edge_objects) */
  int32_t count;
  size_t object_size; /* bytes from one to the next: newer libraries may have larger ones */
  const edge_object* objects;
  const char* text; /* what the labels say, in UTF-8; "" where the release reads no text */
} edge_objects;

#define EDGE_OBJECTS {sizeof(edge_objects), 0, 0, NULL, NULL}

/* The version of the interface that the library has: compare it with EDGE_ABI. */
EDGE_API int32_t edge_abi(void);

/* The library's own version and those of TVM and TVM-FFI that a release must be compiled with, as
 * JSON in one line. */
EDGE_API const char* edge_version(void);

/* What went wrong in this thread's last call that did not return EDGE_OK, in one line; "" if
 * nothing did. Valid until the thread's next call. */
EDGE_API const char* edge_error(void);

/* Opens a release: a folder, or a link to one, such as `current` of a device's store, which is
 * followed here and then never again. `options` may be NULL. *model is NULL after a failure. */
EDGE_API int edge_open(const char* release, const edge_options* options, edge_model** model);

/* Ends its threads and gives its memory back. NULL is allowed. */
EDGE_API void edge_close(edge_model* model);

EDGE_API int edge_release_of(const edge_model* model, edge_release* release);

/* 1 if the path that was opened leads to another release by now: then open it anew, and close this
 * one when that worked. 0 if not, also where it leads nowhere. */
EDGE_API int edge_changed(const edge_model* model);

/* How many inputs and outputs there are; 0 for NULL. */
EDGE_API int32_t edge_inputs(const edge_model* model);
EDGE_API int32_t edge_outputs(const edge_model* model);

/* The input of a number, in the model's order. Write to its `data`, which stays where it is, and
 * holds zeros at first; a run leaves it as it is. Not while a run works, from another thread: the
 * memory may be the device's by then. EDGE_FAILED where a run lost the memory with its device: what `data`
 * was before is void then, and the model is to be closed. */
EDGE_API int edge_input(edge_model* model, int32_t number, edge_tensor* tensor);

/* The output of a number. Its `data` is that of the last run, and valid until the next one. */
EDGE_API int edge_output(edge_model* model, int32_t number, edge_tensor* tensor);

/* A release may have several variants: the same network compiled for several sets of shapes, with the same
 * inputs, outputs and weights but for the shapes. One of them is selected, the first one at first: edge_input,
 * edge_output and edge_run are those of the selected one. Each has inputs of its own, which keep what they
 * hold and where they are while another one is selected; the outputs of a run are gone after it.
 * The first selection of a variant allocates its inputs. After that, selecting takes no time worth
 * naming. */
enum { EDGE_SELECTED = -1 };

/* A shape of an input. */
typedef struct edge_shape {
  int32_t input;        /* its number */
  int32_t rank;         /* of `sizes` */
  const int64_t* sizes;
} edge_shape;

/* How many variants there are; 0 for a release with a single set of shapes. */
EDGE_API int32_t edge_variants(const edge_model* model);

/* The name of a variant, or of the selected one; NULL where there is none. */
EDGE_API const char* edge_variant(const edge_model* model, int32_t number);

/* The input of a variant, selected or not; `data` is NULL. */
EDGE_API int edge_variant_input(const edge_model* model, int32_t variant, int32_t input, edge_tensor* tensor);

/* Selects a variant by its name; EDGE_USAGE if there is none, and edge_error lists them. */
EDGE_API int edge_select(edge_model* model, const char* variant);

/* Selects the variant whose inputs have these shapes; those of other inputs do not matter. If the selected
 * one has them, it stays; else it is the first one that has them. EDGE_USAGE if none has, and edge_error lists
 * the available shapes: the selected one stays then. */
EDGE_API int edge_set_shapes(edge_model* model, int32_t count, const edge_shape* shapes);

/* Computes the outputs of what the inputs hold. */
EDGE_API int edge_run(edge_model* model);

/* The same for a model with a state, which the model keeps from one step to the next: inputs that are
 * a state are not read, and outputs that are one cannot be read. It is zeros at first. A step that fails
 * leaves it as it was; if the release changes a state in place, the next steps return EDGE_FAILED until
 * edge_reset or edge_state_load. Without a state this is edge_run. edge_run does not use the state that is kept:
 * it reads all inputs, and gives all outputs. */
EDGE_API int edge_step(edge_model* model);

/* Makes the state zeros. A stream of edge_stream_audio begins anew. */
EDGE_API int edge_reset(edge_model* model);

/* Writes the state to a file, as a whole or not at all, and takes it from there. Only the release that
 * saved a state loads it: EDGE_UNFIT for that of another release, EDGE_RELEASE for a damaged file. The
 * state stays as it was then. */
EDGE_API int edge_state_save(const edge_model* model, const char* file);
EDGE_API int edge_state_load(edge_model* model, const char* file);

/* Makes the model's input of a picture, runs the model, and finds the objects in its output, by the steps of
 * the release; EDGE_USAGE where it has none, or they do not take the picture. `objects` may be NULL; a
 * release without a last step has none, and its outputs are those of edge_output. After the first call, a
 * picture of the same size and format allocates nothing in these steps, but what libturbojpeg and libpng allocate
 * for a file, and free. A file that is damaged or cut off is EDGE_USAGE. Rotations in EXIF and colour profiles are
 * ignored. */
EDGE_API int edge_run_image(edge_model* model, const edge_image* image, edge_objects* objects);

/* Decodes a file, EDGE_JPEG or EDGE_PNG, to EDGE_RGB pixels, as edge_run_image does: where the application needs its
 * size or its pixels, too, or several models run on it. `data` is the model's memory, valid until its next file. */
EDGE_API int edge_decode_image(edge_model* model, const edge_image* file, edge_image* pixels);

/* The part of a raw picture that a box has, for a second model: `crop` is a picture in the memory of `image`, and nothing
 * is copied. It is cut at the picture's edges; NV12 and YUYV, which have pairs of pixels, begin at an even one.
 * EDGE_USAGE where the box has no pixel of the picture. */
EDGE_API int edge_crop_image(const edge_image* image, const edge_object* box, edge_image* crop);

/* A box that a first model has found in a picture, and what a second one has found in the part of the picture there. */
typedef struct edge_crop {
  const edge_object* box;
  int32_t count;              /* of `objects`; 0 also of a box that has no pixel of the picture */
  const edge_object* objects; /* the best first; boxes and key points are in pixels of the whole picture */
  const char* text;           /* what their labels say; "" where the second release reads no text */
} edge_crop;

/* The best box first. It is memory of the models, valid until the next run of either. */
typedef struct edge_crops {
  size_t size;        /* sizeof(edge_crops) */
  int32_t count;
  size_t crop_size;   /* bytes from one to the next, and of the objects of each: newer libraries may have larger ones */
  size_t object_size;
  const edge_crop* crops;
  int32_t boxes;      /* that the first model has found: more than `count` where `most` left some out */
} edge_crops;

#define EDGE_CROPS {sizeof(edge_crops), 0, 0, 0, NULL, 0}

/* Two models in a row: finds boxes in a picture with the first one, as edge_run_image does, and runs the second one on
 * each of the best `most` (1 to 1000), cut as edge_crop_image does. The releases of both have steps for pictures: the
 * first finds boxes, and the second has a last step. The error of a failure begins with the model that failed. After the
 * first pictures with and without boxes, one of the same size and format allocates nothing in these steps, but what
 * decodes a file. edge_output and edge_object_mask are those of each model's own last run. */
EDGE_API int edge_run_crops(edge_model* first, edge_model* second, const edge_image* image, int32_t most,
                            edge_crops* crops);

/* The mask of an object: a byte for each pixel of the picture in its box, 1 where the object is, else 0. */
typedef struct edge_mask {
  size_t size;         /* sizeof(edge_mask) */
  int32_t left, top;   /* its first pixel in the picture */
  int32_t width, height; /* 0 where the box has no whole pixel */
  uint8_t* data;       /* the caller's memory, to be filled; NULL: only the numbers above are */
  size_t bytes;        /* of `data`: as many as height and stride need */
  size_t stride;       /* bytes from a row to the next one; 0: width */
} edge_mask;

#define EDGE_MASK {sizeof(edge_mask), 0, 0, 0, 0, NULL, 0, 0}

/* The mask of an object of the last edge_run_image, by its number from 0, before the model runs again. EDGE_USAGE where
 * the release has no masks, or `bytes` are too few: then `width` and `height` are what is needed. */
EDGE_API int edge_object_mask(edge_model* model, int32_t number, edge_mask* mask);

/* As edge_run_image for a sound: the model runs once for each window of it, and its outputs are those of the last one.
 * After the first call, a sound of the same rate and length allocates nothing in these steps. A model with a state
 * begins each sound with zeros, and its windows are the steps. A stream of edge_stream_audio ends without a result. */
EDGE_API int edge_run_audio(edge_model* model, const edge_audio* audio, edge_objects* objects);

/* Takes the results of a window of a stream, from number 0; it begins `number` times the hop after the stream. They, and
 * those of edge_output, stay until it returns. It must not run, reset or close the model, or throw. */
typedef void (*edge_heard)(void* context, int64_t number, const edge_objects* objects);

/* The next samples of a stream, any number of them, EDGE_PCM16 or EDGE_PCM_FLOAT: runs the model for each window
 * that is complete, and calls `heard`, which may be NULL. A model with a state keeps it from one window to the
 * next. After its first windows, a stream allocates nothing but small blocks that steps with a state take. What is
 * refused (another rate or number of channels, a sample that is not a finite number) leaves the stream as it was; a
 * window that fails ends it. */
EDGE_API int edge_stream_audio(edge_model* model, const edge_audio* audio, edge_heard heard, void* context);

/* Ends a stream: zeros follow samples that had no window so far. The next samples begin another one, and the state is
 * zeros. */
EDGE_API int edge_end_stream(edge_model* model, edge_heard heard, void* context);

/* The text of tokens, by their numbers in the vocabulary of the release, up to the one that ends it: *text is UTF-8 in the
 * model's memory, valid until the next call. EDGE_USAGE where the release has no vocabulary, or a number is not in it. */
EDGE_API int edge_text(edge_model* model, const int64_t* numbers, size_t count, const char** text);

#ifdef __cplusplus
}
#endif

#endif /* EDGE_MODEL_H_ */
