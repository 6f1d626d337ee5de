/* memory_process RELEASE THREADS SPIN_US PERIOD_US SECONDS: opens a release, runs it three times, prints how long the
 * first took, its peak memory, and how much of it no other process shares (KiB), runs it once each period (0: never) for some seconds, and prints
 * the CPU seconds that this took beyond the runs on the calling thread. Then it waits for the end of its input. */
#define _GNU_SOURCE
#include <edge_model.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static long field(const char* path, const char* name) {
  char line[256];
  long sum = 0, value;
  FILE* file = fopen(path, "r");
  while (file && fgets(line, sizeof line, file)) {
    if (strncmp(line, name, strlen(name)) == 0 && sscanf(strchr(line, ':') + 1, "%ld", &value) == 1) sum += value;
  }
  if (file) fclose(file);
  return sum;
}

static double cpu_seconds(int who) {
  struct rusage used;
  getrusage(who, &used);
  return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  edge_options options = EDGE_OPTIONS;
  options.threads = atoi(argv[2]);
  options.spin_us = atoi(argv[3]);
  const long period_us = atol(argv[4]), length_s = atol(argv[5]);
  edge_model* model;
  struct timespec now, end;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (edge_open(argv[1], &options, &model)) return fprintf(stderr, "%s\n", edge_error()), 1;
  clock_gettime(CLOCK_MONOTONIC, &end);
  const double load_ms = (double)(end.tv_sec - now.tv_sec) * 1e3 + (double)(end.tv_nsec - now.tv_nsec) / 1e6;
  for (int i = 0; i < 3; ++i) {
    if (edge_run(model)) return fprintf(stderr, "%s\n", edge_error()), 1;
  }
  const long peak = field("/proc/self/status", "VmHWM");
  const long own = field("/proc/self/smaps_rollup", "Private_Dirty") + field("/proc/self/smaps_rollup", "Private_Clean");
  clock_gettime(CLOCK_MONOTONIC, &now);
  end = now;
  end.tv_sec += length_s;
  const double before = cpu_seconds(RUSAGE_SELF), before_here = cpu_seconds(RUSAGE_THREAD);
  long runs = 0;
  if (period_us == 0) {
    sleep((unsigned)length_s);
  } else {
    while (now.tv_sec < end.tv_sec) {
      now.tv_nsec += period_us * 1000;
      now.tv_sec += now.tv_nsec / 1000000000;
      now.tv_nsec %= 1000000000;
      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &now, NULL);
      if (edge_run(model)) return 1;
      ++runs;
    }
  }
  const double here = cpu_seconds(RUSAGE_THREAD) - before_here, all = cpu_seconds(RUSAGE_SELF) - before;
  printf("{\"load_ms\": %.2f, \"peak_kib\": %ld, \"private_kib\": %ld, \"seconds\": %ld, \"runs\": %ld, "
         "\"cpu_s\": %.6f, \"others_cpu_s\": %.6f}\n",
         load_ms, peak, own, length_s, runs, all, all - here);
  fflush(stdout);
  while (getchar() != EOF) {
  }
  edge_close(model);
  return 0;
}
