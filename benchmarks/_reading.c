/* Reads a number of bytes again and again with some threads; prints how many GB/s the fastest tenth reads: reading BYTES THREADS */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 300, STEP = 64 }; /* numbers of a step: four vectors of 512 bits, or more of fewer */

static long long *numbers;
static size_t each; /* numbers of a thread */
static pthread_barrier_t barrier;
static volatile long long sink;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

static void read_share(size_t share) {
  long long sums[STEP] = {0};
  const long long *from = numbers + share * each;
  for (size_t first = 0; first + STEP <= each; first += STEP)
    for (int lane = 0; lane < STEP; lane++) sums[lane] ^= from[first + lane];
  for (int lane = 0; lane < STEP; lane++) sink += sums[lane];
}

static void *work(void *share) {
  for (int round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(&barrier);
    read_share((size_t)share);
    pthread_barrier_wait(&barrier);
  }
  return NULL;
}

static int by_size(const void *first, const void *second) {
  double difference = *(const double *)first - *(const double *)second;
  return difference < 0 ? -1 : difference > 0;
}

int main(int count, char **words) {
  if (count != 3) return 2;
  size_t bytes = strtoull(words[1], NULL, 10), threads = strtoull(words[2], NULL, 10);
  if (!bytes || !threads || !(numbers = aligned_alloc(64, (bytes + 63) / 64 * 64))) return 1;
  memset(numbers, 1, bytes);
  each = bytes / sizeof *numbers / threads;
  static double seconds[ROUNDS];
  pthread_barrier_init(&barrier, NULL, threads);
  for (size_t share = 1; share < threads; share++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, (void *)share)) return 1;
  }
  for (int round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(&barrier);
    double start = now();
    read_share(0);
    pthread_barrier_wait(&barrier);
    seconds[round] = now() - start;
  }
  qsort(seconds, ROUNDS, sizeof *seconds, by_size);
  printf("%.3f\n", 1e-9 * bytes / seconds[ROUNDS / 10]);
  return 0;
}
