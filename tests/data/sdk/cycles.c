/* cycles RELEASE N: opens, runs and closes a release with two threads, N times after a first 100; prints how much more
 * there is afterwards: of memory that is allocated, and resident (KiB), of threads, files and mappings of models. */
#include <dirent.h>
#include <edge_model.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long resident_kib(void) {
  char line[256];
  long kib = -1;
  FILE* file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file)) {
    if (sscanf(line, "VmRSS: %ld", &kib) == 1) break;
  }
  if (file) fclose(file);
  return kib;
}

static long allocated_kib(void) {
  const struct mallinfo2 info = mallinfo2();
  return (long)((info.uordblks + info.hblkhd) / 1024);
}

static int entries(const char* path) {
  int count = 0;
  DIR* folder = opendir(path);
  while (folder && readdir(folder)) ++count;
  if (folder) closedir(folder);
  return count - 2;
}

static int mapped(const char* name) {
  char line[4096];
  int count = 0;
  FILE* file = fopen("/proc/self/maps", "r");
  while (file && fgets(line, sizeof line, file)) count += strstr(line, name) != NULL;
  if (file) fclose(file);
  return count;
}

static int cycle(const char* path) {
  edge_options options = EDGE_OPTIONS;
  options.threads = 2;
  edge_model* model;
  if (edge_open(path, &options, &model) || edge_run(model)) return fprintf(stderr, "%s\n", edge_error()), 1;
  edge_close(model);
  return 0;
}

int main(int argc, char** argv) {
  const int count = atoi(argv[2]);
  for (int i = 0; i < 100; ++i) {
    if (cycle(argv[1])) return 1;
  }
  const long resident = resident_kib(), allocated = allocated_kib();
  const int files = entries("/proc/self/fd");
  for (int i = 0; i < count; ++i) {
    if (cycle(argv[1])) return 1;
  }
  printf("{\"allocated\": %ld, \"resident\": %ld, \"threads\": %d, \"files\": %d, \"mapped\": %d}\n",
         allocated_kib() - allocated, resident_kib() - resident, entries("/proc/self/task"), entries("/proc/self/fd") - files, mapped("/model.so"));
  return argc != 3;
}
