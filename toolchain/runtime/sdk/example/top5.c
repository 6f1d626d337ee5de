/* Prints the five likeliest classes of one input: top5 RELEASE INPUT.raw [LABELS.txt] */
#include <edge_model.h>
#include <stdio.h>
#include <string.h>

static int fail(const char* what) {
  fprintf(stderr, "top5: %s: %s\n", what, edge_error());
  return 1;
}

static void print_label(const char* path, size_t number) {
  char line[256] = "";
  FILE* file = path ? fopen(path, "r") : NULL;
  for (size_t i = 0; file && i <= number && fgets(line, sizeof line, file); ++i) continue;
  if (file) fclose(file);
  printf("%5zu  %s\n", number, strtok(line, "\n") ? line : "");
}

int main(int argc, char** argv) {
  if (argc < 3) return fprintf(stderr, "usage: top5 RELEASE INPUT.raw [LABELS.txt]\n"), 2;
  edge_model* model;
  edge_tensor input = EDGE_TENSOR, output = EDGE_TENSOR;
  if (edge_open(argv[1], NULL, &model) || edge_input(model, 0, &input)) return fail(argv[1]);
  FILE* file = fopen(argv[2], "rb");
  if (!file || fread(input.data, 1, input.bytes, file) != input.bytes) return fail(argv[2]);
  fclose(file);
  if (edge_run(model) || edge_output(model, 0, &output)) return fail("run");
  if (strcmp(output.dtype, "float32")) return fail("the first output is not of floats");
  float* score = output.data;
  const size_t classes = output.bytes / sizeof *score;
  for (size_t place = 0; place < 5 && place < classes; ++place) {
    size_t best = 0;
    for (size_t i = 1; i < classes; ++i) best = score[i] > score[best] ? i : best;
    printf("%8.5f ", score[best]);
    print_label(argc > 3 ? argv[3] : NULL, best);
    score[best] = -1e30f;
  }
  edge_close(model);
  return 0;
}
