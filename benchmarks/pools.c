/* pools FIRST SECOND THREADS SECONDS: runs two releases in one process, in turns on one thread and at the same time on
 * two, with threads in common, with threads of their own, and with a lock around each run. Each way takes SECONDS, in
 * rounds of a tenth. Prints a line for each way: its name, the runs of both in a second, and the median and the 99th
 * percentile of the microseconds of a run of each. */
#include <edge_model.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 1000000, ROUNDS = 10 };

typedef struct {
  edge_model* model;
  double* taken;
  int count;
  pthread_mutex_t* lock;
  const double* end;
} Side;

static double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

static int by_value(const void* left, const void* right) {
  const double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

static void run_once(Side* side) {
  const double start = now_us();
  if (side->lock) pthread_mutex_lock(side->lock);
  if (edge_run(side->model)) fprintf(stderr, "%s\n", edge_error()), exit(1);
  if (side->lock) pthread_mutex_unlock(side->lock);
  if (side->count < MOST) side->taken[side->count++] = now_us() - start;
}

static void* run_until(void* data) {
  Side* const side = data;
  while (now_us() < *side->end) run_once(side);
  return NULL;
}

static void run_round(Side* sides, int at_once, double microseconds) {
  const double end = now_us() + microseconds;
  sides[0].end = sides[1].end = &end;
  if (!at_once) {
    while (now_us() < end) run_once(&sides[0]), run_once(&sides[1]);
    return;
  }
  pthread_t other;
  if (pthread_create(&other, NULL, run_until, &sides[1])) exit(1);
  run_until(&sides[0]);
  pthread_join(other, NULL);
}

static double quantile(const Side* side, double share) {
  return side->count ? side->taken[(int)(share * (side->count - 1))] : 0;
}

int main(int argc, char** argv) {
  static const char* const ways[] = {"turns-shared", "turns-own", "both-shared", "both-own", "both-locked"};
  enum { WAYS = sizeof ways / sizeof *ways };
  if (argc != 5) return 2;
  const double seconds = atof(argv[4]);
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  edge_model* models[2][2];
  for (int own = 0; own < 2; ++own) {
    for (int i = 0; i < 2; ++i) {
      edge_options options = EDGE_OPTIONS;
      options.threads = atoi(argv[3]);
      options.own_threads = own;
      if (edge_open(argv[1 + i], &options, &models[own][i])) return fprintf(stderr, "%s\n", edge_error()), 1;
    }
  }
  static Side sides[WAYS][2];
  for (int way = 0; way < WAYS; ++way) {
    for (int i = 0; i < 2; ++i) {
      Side* const side = &sides[way][i];
      side->model = models[strstr(ways[way], "own") != NULL][i];
      side->taken = malloc(MOST * sizeof(double));
      side->lock = way == WAYS - 1 ? &lock : NULL;
      run_once(side);
      side->count = 0;
    }
  }
  for (int round = 0; round < ROUNDS; ++round) {
    for (int turn = 0; turn < WAYS; ++turn) {
      const int way = (turn + round) % WAYS;
      run_round(sides[way], strncmp(ways[way], "both", 4) == 0, 1e6 * seconds / ROUNDS);
    }
  }
  for (int way = 0; way < WAYS; ++way) {
    printf("%s %.2f", ways[way], (sides[way][0].count + sides[way][1].count) / seconds);
    for (int i = 0; i < 2; ++i) {
      qsort(sides[way][i].taken, (size_t)sides[way][i].count, sizeof(double), by_value);
      printf(" %.1f %.1f", quantile(&sides[way][i], 0.5), quantile(&sides[way][i], 0.99));
    }
    printf("\n");
  }
  return 0;
}
