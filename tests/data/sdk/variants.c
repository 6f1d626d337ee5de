/* variants RELEASE: runs each variant of a release of x [1, 3, height, width] twice, in turns, and no other shape. */
#include <edge_model.h>
#include <stdio.h>
#include <string.h>

#define MOST 8
#define CHECK(holds)                                                                  \
  do {                                                                                \
    if (!(holds)) return fprintf(stderr, "line %d: %s: %s\n", __LINE__, #holds, edge_error()), 1; \
  } while (0)

/* Fills the selected variant's input, runs it, and returns the first number of its output. */
static int run(edge_model* model, float* result, void** place) {
  edge_tensor input = EDGE_TENSOR, output = EDGE_TENSOR;
  CHECK(edge_input(model, 0, &input) == EDGE_OK);
  for (size_t k = 0; k < input.bytes / sizeof(float); ++k) ((float*)input.data)[k] = (float)(k % 7) / 8;
  CHECK(edge_output(model, 0, &output) == EDGE_OK && output.data == NULL);
  CHECK(edge_run(model) == EDGE_OK);
  CHECK(edge_output(model, 0, &output) == EDGE_OK);
  *result = *(float*)output.data;
  *place = input.data;
  return 0;
}

int main(int argc, char** argv) {
  edge_model* model = NULL;
  CHECK(argc == 2 && edge_open(argv[1], NULL, &model) == EDGE_OK);
  const int32_t count = edge_variants(model);
  CHECK(count > 1 && count <= MOST);
  CHECK(strcmp(edge_variant(model, EDGE_SELECTED), edge_variant(model, 0)) == 0);
  CHECK(edge_variant(model, count) == NULL);
  float results[MOST] = {0};
  void* places[MOST] = {NULL};
  for (int turn = 0; turn < 2; ++turn) {
    for (int32_t i = count - 1; i >= 0; --i) {
      edge_tensor wanted = EDGE_TENSOR, input = EDGE_TENSOR;
      CHECK(edge_variant_input(model, i, 0, &wanted) == EDGE_OK && wanted.data == NULL);
      const edge_shape shape = {0, wanted.rank, wanted.shape};
      CHECK(edge_set_shapes(model, 1, &shape) == EDGE_OK);
      CHECK(strcmp(edge_variant(model, EDGE_SELECTED), edge_variant(model, i)) == 0);
      CHECK(edge_input(model, 0, &input) == EDGE_OK && input.bytes == wanted.bytes);
      CHECK(turn == 0 || input.data == places[i]); /* a second selection allocates nothing */
      float result = 0;
      if (run(model, &result, &places[i])) return 1;
      CHECK(turn == 0 || result == results[i]);
      results[i] = result;
    }
  }
  const int64_t sizes[] = {1, 3, 5, 7};
  const edge_shape other = {0, 4, sizes}, short_one = {0, 2, sizes}, nowhere = {1, 4, sizes};
  CHECK(edge_set_shapes(model, 1, &other) == EDGE_USAGE);
  puts(edge_error());
  CHECK(edge_set_shapes(model, 1, &short_one) == EDGE_USAGE);
  CHECK(edge_set_shapes(model, 1, &nowhere) == EDGE_USAGE);
  CHECK(edge_set_shapes(model, 1, NULL) == EDGE_USAGE);
  CHECK(edge_set_shapes(model, 0, NULL) == EDGE_OK);
  CHECK(edge_select(model, "none") == EDGE_USAGE);
  puts(edge_error());
  CHECK(edge_select(model, NULL) == EDGE_USAGE);
  CHECK(edge_select(model, edge_variant(model, 1)) == EDGE_OK);
  CHECK(edge_variants(NULL) == 0 && edge_variant(NULL, 0) == NULL);
  edge_close(model);
  return 0;
}
