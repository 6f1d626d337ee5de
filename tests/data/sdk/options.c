/* options RELEASE: runs a release with each option of threads, and looks at the threads that there are then. */
#define _GNU_SOURCE
#include <dirent.h>
#include <edge_model.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(holds)                                                                              \
  do {                                                                                            \
    if (!(holds)) return fprintf(stderr, "line %d: %s: %s\n", __LINE__, #holds, edge_error()), 1; \
  } while (0)

/* The number of a thread beside the calling one; 0 if there is none, -1 if there are several. */
static pid_t other_thread(void) {
  pid_t other = 0;
  DIR* folder = opendir("/proc/self/task");
  for (struct dirent* entry; (entry = readdir(folder)) != NULL;) {
    const pid_t number = atoi(entry->d_name);
    if (number != 0 && number != getpid()) other = other == 0 ? number : -1;
  }
  closedir(folder);
  return other;
}

/* The first number of the first output; NaN after an error. */
static float first_output(const char* release, const edge_options* options, pid_t* other, int* policy, cpu_set_t* cpus) {
  edge_model* model;
  if (edge_open(release, options, &model)) return NAN;
  edge_tensor input = EDGE_TENSOR, output = EDGE_TENSOR;
  edge_input(model, 0, &input);
  for (size_t i = 0; i < input.bytes / sizeof(float); ++i) ((float*)input.data)[i] = (float)(i % 5);
  float result = NAN;
  for (int i = 0; i < 20; ++i) {
    if (edge_run(model) || edge_output(model, 0, &output)) return NAN;
    result = ((float*)output.data)[0];
  }
  *other = other_thread();
  if (*other > 0) *policy = sched_getscheduler(*other);
  if (*other > 0) sched_getaffinity(*other, sizeof *cpus, cpus);
  edge_close(model);
  return result;
}

typedef struct {
  int calls, tasks, mode;
  void (*task)(void*, int32_t);
  void* data;
} Counter;

static void* on_thread(void* counter) {
  ((Counter*)counter)->task(((Counter*)counter)->data, 1);
  return NULL;
}

/* By its mode: everything here, one of them on a thread, or nothing at all. */
static void execute(void* context, edge_task task, void* data, int32_t count) {
  Counter* const counter = context;
  ++counter->calls;
  counter->tasks = count;
  pthread_t thread;
  counter->task = task, counter->data = data;
  const int threaded = counter->mode == 1 && pthread_create(&thread, NULL, on_thread, counter) == 0;
  for (int32_t i = 0; i < count && counter->mode != 2; ++i) {
    if (!threaded || i != 1) task(data, i);
  }
  if (threaded) pthread_join(thread, NULL);
}

static int wrong(const char* release, edge_options options, const char* text) {
  edge_model* model;
  return edge_open(release, &options, &model) == EDGE_USAGE && model == NULL && strstr(edge_error(), text) != NULL;
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  const char* const release = argv[1];
  pid_t other;
  int policy = -1;
  cpu_set_t cpus;
  edge_options usual = EDGE_OPTIONS;
  const float wanted = first_output(release, &usual, &other, &policy, &cpus);
  CHECK(!isnan(wanted) && other == 0); /* one thread: no pool at all */

  edge_options old = EDGE_OPTIONS; /* of an application that knows none of the later options */
  old.size = offsetof(edge_options, priority);
  old.priority = 1000;
  CHECK(first_output(release, &old, &other, &policy, &cpus) == wanted && other == 0);

  edge_options options = EDGE_OPTIONS;
  for (int mode = 0; mode < 3; ++mode) {
    Counter counter = {0, 0, mode, NULL, NULL};
    options.executor = execute;
    options.executor_context = &counter;
    options.threads = 2;
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) break;
    CHECK(first_output(release, &options, &other, &policy, &cpus) == wanted && other == 0);
    CHECK(counter.calls == 0 || counter.tasks == 2);
    if (mode == 0) printf("calls %d\n", counter.calls > 0);
  }
  options.pin = 1;
  CHECK(wrong(release, options, "leave out priority, pin and cpus"));

  edge_options apart = EDGE_OPTIONS;
  apart.own_threads = 1;
  CHECK(first_output(release, &apart, &other, &policy, &cpus) == wanted && other == 0);
  apart.own_threads = 2;
  CHECK(wrong(release, apart, "own_threads is not 0 or 1"));

  cpu_set_t mine;
  sched_getaffinity(0, sizeof mine, &mine);
  int32_t some[2];
  int found = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; ++cpu) {
    if (CPU_ISSET(cpu, &mine)) some[found++] = cpu;
  }
  edge_options placed = EDGE_OPTIONS;
  placed.threads = EDGE_ALL_CPUS;
  placed.cpus = some;
  placed.cpu_count = found;
  if (found == 2) {
    CHECK(first_output(release, &placed, &other, &policy, &cpus) == wanted && other > 0);
    CHECK(CPU_COUNT(&cpus) == 2 && CPU_ISSET(some[0], &cpus) && CPU_ISSET(some[1], &cpus));
    placed.pin = 1;
    CHECK(first_output(release, &placed, &other, &policy, &cpus) == wanted && other > 0);
    CHECK(CPU_COUNT(&cpus) == 1 && CPU_ISSET(some[1], &cpus));
  }
  placed.threads = 3;
  CHECK(wrong(release, placed, "options.cpus has"));
  placed.threads = 0;
  some[0] = 100000;
  CHECK(wrong(release, placed, "not a CPU that this process may use"));
  placed.cpu_count = 0;
  CHECK(wrong(release, placed, "do not agree"));

  edge_options prior = EDGE_OPTIONS;
  prior.priority = 100;
  CHECK(wrong(release, prior, "options.priority"));
  prior.priority = 1;
  prior.threads = EDGE_ALL_CPUS;
  const float result = found == 2 ? first_output(release, &prior, &other, &policy, &cpus) : wanted;
  if (isnan(result)) CHECK(strstr(edge_error(), "the priority of the threads") != NULL);
  if (!isnan(result) && found == 2) CHECK(result == wanted && (policy & ~SCHED_RESET_ON_FORK) == SCHED_FIFO);
  CHECK(sched_getscheduler(0) == SCHED_OTHER || sched_getscheduler(0) == SCHED_IDLE || sched_getscheduler(0) == SCHED_BATCH);
  return 0;
}
