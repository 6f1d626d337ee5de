/* guest RELEASE: uses every function as an application may, and looks whether the library behaved as a guest does. */
#define _GNU_SOURCE
#include <edge_model.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char** environ;

#define CHECK(holds)                                                                  \
  do {                                                                                \
    if (!(holds)) return fprintf(stderr, "line %d: %s: %s\n", __LINE__, #holds, edge_error()), 1; \
  } while (0)

typedef struct {
  void* handlers[NSIG];
  int flags[NSIG];
  sigset_t mask;
  cpu_set_t cpus;
  char folder[4096];
  char** environment;
} State;

static void look(State* state) {
  memset(state, 0, sizeof *state);
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action;
    if (sigaction(number, NULL, &action) != 0) continue;
    memcpy(&state->handlers[number], &action.sa_handler, sizeof(void*));
    state->flags[number] = action.sa_flags;
  }
  pthread_sigmask(SIG_SETMASK, NULL, &state->mask);
  sched_getaffinity(0, sizeof state->cpus, &state->cpus);
  if (!getcwd(state->folder, sizeof state->folder)) state->folder[0] = 0;
  state->environment = environ;
}

static void fill(edge_model* model, float value) {
  for (int32_t i = 0; i < edge_inputs(model); ++i) {
    edge_tensor input = EDGE_TENSOR;
    edge_input(model, i, &input);
    for (size_t k = 0; k < input.bytes / sizeof(float); ++k) ((float*)input.data)[k] = value * (float)(k % 7);
  }
}

static float sum(edge_model* model) {
  edge_tensor output = EDGE_TENSOR;
  edge_output(model, 0, &output);
  float total = 0;
  for (size_t k = 0; k < output.bytes / sizeof(float); ++k) total += ((float*)output.data)[k];
  return total;
}

typedef struct {
  const char* path;
  float value;
  float wanted;
  int failures;
} Job;

static void* run_many(void* data) {
  Job* job = data;
  edge_options options = EDGE_OPTIONS;
  options.threads = 2;
  edge_model* model;
  job->failures = 1000;
  if (edge_open(job->path, &options, &model)) return NULL;
  job->failures = 0;
  for (int i = 0; i < 200; ++i) {
    fill(model, job->value);
    if (edge_run(model) || sum(model) != job->wanted) ++job->failures;
  }
  edge_close(model);
  return NULL;
}

static int two_at_once(const char* path) {
  Job jobs[2] = {{path, 0.5f, 0, 0}, {path, -0.25f, 0, 0}};
  pthread_t threads[2];
  edge_model* model;
  CHECK(edge_open(path, NULL, &model) == EDGE_OK);
  for (int i = 0; i < 2; ++i) {
    fill(model, jobs[i].value);
    CHECK(edge_run(model) == EDGE_OK);
    jobs[i].wanted = sum(model);
  }
  edge_close(model);
  for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, run_many, &jobs[i]);
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  CHECK(jobs[0].failures == 0 && jobs[1].failures == 0);
  return 0;
}

static int wrong_calls(const char* path) {
  edge_model* model = (edge_model*)1;
  edge_tensor tensor = EDGE_TENSOR;
  edge_options options = EDGE_OPTIONS;
  CHECK(edge_open(NULL, NULL, &model) == EDGE_USAGE && model == NULL);
  CHECK(edge_open("", NULL, &model) == EDGE_USAGE);
  CHECK(edge_open(path, NULL, NULL) == EDGE_USAGE);
  CHECK(edge_open("/no/such", NULL, &model) == EDGE_RELEASE && strstr(edge_error(), "/no/such"));
  options.threads = 5000;
  CHECK(edge_open(path, &options, &model) == EDGE_USAGE && strstr(edge_error(), "5000 threads"));
  options.threads = -2;
  CHECK(edge_open(path, &options, &model) == EDGE_USAGE);
  options.size = 0;
  CHECK(edge_open(path, &options, &model) == EDGE_USAGE);
  CHECK(edge_run(NULL) == EDGE_USAGE && edge_inputs(NULL) == 0 && edge_outputs(NULL) == 0 && edge_changed(NULL) == 0);
  edge_close(NULL);
  CHECK(edge_open(path, NULL, &model) == EDGE_OK && edge_error()[0] == 0);
  CHECK(edge_input(model, -1, &tensor) == EDGE_USAGE && edge_input(model, 99, &tensor) == EDGE_USAGE);
  CHECK(edge_output(model, edge_outputs(model), &tensor) == EDGE_USAGE && edge_input(model, 0, NULL) == EDGE_USAGE);
  CHECK(edge_output(model, 0, &tensor) == EDGE_OK && tensor.data == NULL && tensor.bytes > 0 && tensor.state == -1);
  CHECK(edge_reset(model) == EDGE_OK && edge_step(model) == EDGE_OK); /* without a state as edge_run */
  CHECK(edge_output(model, 0, &tensor) == EDGE_OK && tensor.data != NULL);
  tensor.size = sizeof(size_t) + sizeof(char*); /* of an older header: no more than that is written */
  tensor.rank = 77;
  CHECK(edge_input(model, 0, &tensor) == EDGE_OK && tensor.rank == 77 && tensor.name[0]);
  edge_close(model);
  return 0;
}

static int one_model(const char* path) {
  edge_model* model;
  edge_tensor input = EDGE_TENSOR;
  edge_release release = EDGE_RELEASE_INFO;
  CHECK(edge_abi() == EDGE_ABI && strstr(edge_version(), "\"tvm\""));
  CHECK(edge_open(path, NULL, &model) == EDGE_OK);
  CHECK(edge_input(model, 0, &input) == EDGE_OK && ((size_t)input.data & 63) == 0);
  for (size_t k = 0; k < input.bytes; ++k) CHECK(((char*)input.data)[k] == 0);
  CHECK(edge_release_of(model, &release) == EDGE_OK && release.folder[0] == '/' && release.name[0]);
  CHECK(edge_changed(model) == 0);
  fill(model, 1);
  const float first = ((float*)input.data)[1];
  CHECK(edge_run(model) == EDGE_OK && ((float*)input.data)[1] == first);
  edge_close(model);
  return 0;
}

int main(int argc, char** argv) {
  static State before, after;
  (void)argc;
  look(&before);
  if (one_model(argv[1]) || wrong_calls(argv[1]) || two_at_once(argv[1])) return 1;
  look(&after);
  if (memcmp(&before, &after, sizeof before) != 0) return fprintf(stderr, "the library left traces\n"), 1;
  return 0;
}
