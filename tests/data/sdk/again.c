/* again RELEASE FILE WIDTH HEIGHT: runs RGB pixels, or a WAV file where the size is 0 0, again and again. Prints what the
 * runs after the second one have allocated, with their masks, and how many objects and masks there were. */
#define _GNU_SOURCE
#include <edge_model.h>
#include <stdio.h>
#include <stdlib.h>

#include "allocations.h"

#define MOST (1 << 20)
#define RUNS 8

static int fail(void) {
  fprintf(stderr, "%s\n", edge_error());
  return 1;
}

int main(int argc, char** argv) {
  static uint8_t data[MOST], pixels[MOST];
  static char line[4096];
  if (argc != 5) return 2;
  FILE* file = fopen(argv[2], "rb");
  if (file == NULL) return 2;
  const size_t bytes = fread(data, 1, MOST, file);
  fclose(file);
  setvbuf(stdout, line, _IOFBF, sizeof line);
  edge_model* model;
  if (edge_open(argv[1], NULL, &model)) return fail();
  edge_audio audio = EDGE_AUDIO;
  edge_image image = EDGE_IMAGE;
  audio.format = EDGE_WAV;
  image.format = EDGE_RGB;
  image.width = atoi(argv[3]);
  image.height = atoi(argv[4]);
  audio.data = image.data = data;
  audio.bytes = image.bytes = bytes;
  long before = 0;
  int masks = 0, objects = 0;
  for (int run = 0; run < RUNS; ++run) {
    edge_objects found = EDGE_OBJECTS;
    if (run == 2) before = allocations;
    if (image.width == 0 ? edge_run_audio(model, &audio, &found) : edge_run_image(model, &image, &found)) return fail();
    objects = found.count;
    masks = 0;
    for (int32_t i = 0; image.width > 0 && i < found.count; ++i) {
      edge_mask mask = EDGE_MASK;
      mask.data = pixels;
      if (run == 0 && edge_object_mask(model, i, &mask) == EDGE_OK && mask.height > 0) return 3; /* of no bytes */
      mask.bytes = MOST;
      if (edge_object_mask(model, i, &mask)) return fail();
      ++masks;
    }
  }
  printf("%ld %d %d\n", allocations - before, objects, masks);
  edge_close(model);
  return 0;
}
