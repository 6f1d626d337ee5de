/* stream RELEASE SAMPLES.raw: hears samples of 16 bits in parts of 100, and prints the number and the score of each
 * window; then what the windows after the first ones have allocated. */
#define _GNU_SOURCE
#include <edge_model.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocations.h"

#define MOST 100000
#define WARM 4

static long before;

static edge_model* model;
static float scores[MOST];
static int64_t count;
static int refused;

static void heard(void* context, int64_t number, const edge_objects* objects) {
  (void)context;
  if (number != count || objects->count != 1 || strcmp(objects->objects->label, "speech") != 0) exit(3);
  scores[count++] = objects->objects->score;
  /* The outputs can be read here, and the model cannot run. */
  edge_tensor output = EDGE_TENSOR;
  if (edge_output(model, 1, &output) || ((const float*)output.data)[0] != objects->objects->score) exit(4);
  if (number == WARM) before = allocations;
  if (number == 0) refused = edge_run(model) == EDGE_USAGE && edge_reset(model) == EDGE_USAGE;
}

static int fail(void) {
  fprintf(stderr, "%s\n", edge_error());
  return 1;
}

int main(int argc, char** argv) {
  static int16_t samples[MOST];
  static char line[1 << 16];
  if (argc != 3) return 2;
  FILE* file = fopen(argv[2], "rb");
  if (file == NULL) return 2;
  const size_t total = fread(samples, sizeof *samples, MOST, file);
  fclose(file);
  setvbuf(stdout, line, _IOFBF, sizeof line);
  if (edge_open(argv[1], NULL, &model)) return fail();
  edge_audio part = EDGE_AUDIO;
  part.format = EDGE_WAV;
  part.bytes = 4;
  part.data = samples;
  if (edge_stream_audio(model, &part, heard, NULL) != EDGE_USAGE) return 5;
  part.format = EDGE_PCM16;
  part.rate = 16000;
  part.channels = 1;
  for (size_t at = 0; at < total; at += 100) {
    part.data = samples + at;
    part.bytes = (total - at < 100 ? total - at : 100) * sizeof *samples;
    if (edge_stream_audio(model, &part, heard, NULL)) return fail();
  }
  const long after = allocations;
  if (edge_end_stream(model, heard, NULL)) return fail();
  for (int64_t i = 0; i < count; ++i) printf("%lld %.9g\n", (long long)i, (double)scores[i]);
  printf("%ld allocations\n", after - before);
  edge_close(model);
  return refused ? 0 : 6;
}
