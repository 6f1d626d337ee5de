/* state_steps RELEASE ROUNDS CALLS: times edge_run, edge_step, and edge_run with the state copied by the caller, in
 * turns on one open model. Prints for each round the median nanoseconds of a call of each of the three. */
#include <edge_model.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUN, STEP, COPY, WAYS };

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

static int by_value(const void* left, const void* right) {
  const double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

static int copy_state(edge_model* model) {
  for (int32_t i = 0; i < edge_inputs(model); ++i) {
    edge_tensor input = EDGE_TENSOR, output = EDGE_TENSOR;
    if (edge_input(model, i, &input)) return 1;
    if (input.state < 0) continue;
    if (edge_output(model, input.state, &output)) return 1;
    memcpy(input.data, output.data, input.bytes);
  }
  return 0;
}

static int call(edge_model* model, int way) {
  if (way == STEP) return edge_step(model);
  if (edge_run(model)) return 1;
  return way == COPY ? copy_state(model) : 0;
}

/* The same inputs and a state of zeros for each way. */
static int begin(edge_model* model) {
  for (int32_t i = 0; i < edge_inputs(model); ++i) {
    edge_tensor input = EDGE_TENSOR;
    if (edge_input(model, i, &input)) return 1;
    if (input.state >= 0) memset(input.data, 0, input.bytes);
  }
  return edge_reset(model);
}

int main(int argc, char** argv) {
  edge_model* model;
  if (argc != 4) return 2;
  const int rounds = atoi(argv[2]), calls = atoi(argv[3]);
  if (edge_open(argv[1], NULL, &model)) return fprintf(stderr, "%s\n", edge_error()), 1;
  double* taken = malloc((size_t)calls * sizeof *taken);
  for (int round = 0; taken && round < rounds; ++round) {
    double each[WAYS];
    for (int turn = 0; turn < WAYS; ++turn) {
      const int way = (turn + round) % WAYS; /* who goes first changes */
      if (begin(model)) return fprintf(stderr, "%s\n", edge_error()), 1;
      for (int i = 0; i < 3; ++i) call(model, way);
      for (int i = 0; i < calls; ++i) {
        const double start = now_ns();
        if (call(model, way)) return fprintf(stderr, "%s\n", edge_error()), 1;
        taken[i] = now_ns() - start;
      }
      qsort(taken, (size_t)calls, sizeof *taken, by_value);
      each[way] = taken[calls / 2];
    }
    printf("%.1f %.1f %.1f\n", each[RUN], each[STEP], each[COPY]);
  }
  free(taken);
  edge_close(model);
  return 0;
}
