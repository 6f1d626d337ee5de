/* steps RELEASE OTHER FILE: steps through a release with a state, saves it to FILE, and loads it again; OTHER is a
 * release of the same model with other weights, whose states are not taken. */
#include <edge_model.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 6
#define CHECK(holds)                                                                  \
  do {                                                                                \
    if (!(holds)) return fprintf(stderr, "line %d: %s: %s\n", __LINE__, #holds, edge_error()), 1; \
  } while (0)

static void fill(edge_model* model, int step) {
  for (int32_t i = 0; i < edge_inputs(model); ++i) {
    edge_tensor input = EDGE_TENSOR;
    edge_input(model, i, &input);
    if (input.state >= 0) continue;
    for (size_t k = 0; k < input.bytes / sizeof(float); ++k) ((float*)input.data)[k] = (float)((k + (size_t)step) % 5) / 4;
  }
}

static float sum(edge_model* model) {
  float total = 0;
  for (int32_t i = 0; i < edge_outputs(model); ++i) {
    edge_tensor output = EDGE_TENSOR;
    edge_output(model, i, &output);
    for (size_t k = 0; output.data && k < output.bytes / sizeof(float); ++k) total += ((float*)output.data)[k];
  }
  return total;
}

/* Steps from `first` on; returns 0 if the sums are those that are wanted, which it writes down if they are none yet. */
static int steps(edge_model* model, int first, float* wanted, int known) {
  for (int step = first; step < STEPS; ++step) {
    fill(model, step);
    if (edge_step(model)) return 1;
    if (!known) wanted[step] = sum(model);
    if (sum(model) != wanted[step]) return 1;
  }
  return 0;
}

static int spoil(const char* path) {
  FILE* file = fopen(path, "r+b");
  if (!file) return 1;
  fseek(file, 0, SEEK_END);
  const long size = ftell(file);
  fclose(file);
  char* bytes = malloc((size_t)size);
  file = fopen(path, "rb");
  const size_t got = fread(bytes, 1, (size_t)size, file);
  fclose(file);
  file = fopen(path, "wb");
  fwrite(bytes, 1, got - 1, file);
  free(bytes);
  return fclose(file);
}

static int tensors(edge_model* model) {
  edge_tensor input = EDGE_TENSOR, output = EDGE_TENSOR;
  int32_t state = 0;
  while (edge_input(model, state, &input) == EDGE_OK && input.state < 0) ++state;
  CHECK(edge_output(model, input.state, &output) == EDGE_OK && output.state == state && output.data == NULL);
  CHECK(output.bytes == input.bytes);
  const int32_t number = input.state;
  input.size = offsetof(edge_tensor, state); /* of an older header */
  input.state = 77;
  CHECK(edge_input(model, state, &input) == EDGE_OK && input.state == 77);
  for (size_t k = 0; k < input.bytes / sizeof(float); ++k) ((float*)input.data)[k] = 3;
  CHECK(edge_run(model) == EDGE_OK && edge_output(model, number, &output) == EDGE_OK && output.data != NULL);
  return 0;
}

int main(int argc, char** argv) {
  edge_model *model, *other;
  float wanted[STEPS];
  CHECK(argc == 4);
  CHECK(edge_step(NULL) == EDGE_USAGE && edge_reset(NULL) == EDGE_USAGE);
  CHECK(edge_state_save(NULL, argv[3]) == EDGE_USAGE && edge_state_load(NULL, argv[3]) == EDGE_USAGE);
  CHECK(edge_open(argv[1], NULL, &model) == EDGE_OK && edge_open(argv[2], NULL, &other) == EDGE_OK);
  CHECK(edge_state_save(model, NULL) == EDGE_USAGE && edge_state_load(model, "") == EDGE_USAGE);
  CHECK(steps(model, 0, wanted, 0) == 0 && wanted[1] != wanted[0]);
  CHECK(tensors(model) == 0); /* an edge_run with a state of its own changes nothing of the other */
  CHECK(edge_reset(model) == EDGE_OK && steps(model, 0, wanted, 1) == 0);
  CHECK(edge_reset(model) == EDGE_OK);
  for (int step = 0; step < STEPS / 2; ++step) {
    fill(model, step);
    CHECK(edge_step(model) == EDGE_OK);
  }
  CHECK(edge_state_save(model, argv[3]) == EDGE_OK && steps(model, STEPS / 2, wanted, 1) == 0);
  CHECK(edge_state_load(model, argv[3]) == EDGE_OK && steps(model, STEPS / 2, wanted, 1) == 0);
  CHECK(edge_state_load(other, argv[3]) == EDGE_UNFIT && strstr(edge_error(), "another release"));
  CHECK(edge_state_save(model, "/no/such/folder/state") == EDGE_USAGE);
  CHECK(edge_state_load(model, "/no/such/state") == EDGE_RELEASE);
  CHECK(edge_state_load(model, argv[3]) == EDGE_OK && spoil(argv[3]) == 0);
  CHECK(edge_state_load(model, argv[3]) == EDGE_RELEASE); /* and the state stays as it was */
  CHECK(steps(model, STEPS / 2, wanted, 1) == 0);
  edge_close(other);
  edge_close(model);
  return 0;
}
