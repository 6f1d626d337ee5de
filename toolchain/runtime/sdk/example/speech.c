/* Prints when somebody speaks, for a release whose windows have a score:
 * arecord -t raw -f S16_LE -c 1 -r 16000 | speech RELEASE */
#include <edge_model.h>
#include <stdio.h>

typedef struct speech {
  int is_on;
} speech;

static void heard(void* context, int64_t number, const edge_objects* found) {
  speech* const now = context;
  const edge_object* const window = found->objects;
  const int is_on = found->count > 0 && window->score > (now->is_on ? 0.35f : 0.5f); /* hysteresis */
  if (is_on != now->is_on) {
    printf("%s at window %lld, second %.2f\n", is_on ? "speech" : "silence", (long long)number, window->left);
    fflush(stdout);
  }
  now->is_on = is_on;
}

static int fail(void) {
  fprintf(stderr, "speech: %s\n", edge_error());
  return 1;
}

int main(int argc, char** argv) {
  edge_model* model;
  speech now = {0};
  int16_t samples[1600]; /* a tenth of a second */
  if (argc != 2) return fprintf(stderr, "usage: speech RELEASE < samples of 16 bits, 16000 Hz, one channel\n"), 2;
  if (edge_open(argv[1], NULL, &model)) return fail();
  edge_audio audio = EDGE_AUDIO;
  audio.format = EDGE_PCM16;
  audio.rate = 16000;
  audio.channels = 1;
  audio.data = samples;
  while ((audio.bytes = fread(samples, 1, sizeof samples, stdin) / 2 * 2) > 0) {
    if (edge_stream_audio(model, &audio, heard, &now)) return fail();
  }
  if (edge_end_stream(model, heard, &now)) return fail();
  return edge_close(model), 0;
}
