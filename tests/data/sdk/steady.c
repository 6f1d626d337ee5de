/* steady RELEASE THREADS RUNS: counts what runs after the first one ask the system for, in all threads, and prints it:
 * allocations, page faults, and the numbers of the system calls that are not those of threads. */
#define _GNU_SOURCE
#include <edge_model.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "allocations.h"

#define WINDOWS 5
#define MOST_CALLS 64

static volatile int calls[MOST_CALLS];
static volatile int call_count;

static long faults(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return used.ru_minflt + used.ru_majflt;
}

static void on_call(int signal, siginfo_t* info, void* context) {
  (void)signal, (void)context;
  const int number = __atomic_fetch_add(&call_count, 1, __ATOMIC_RELAXED);
  if (number < MOST_CALLS) calls[number] = info->si_syscall;
}

/* From here on every other call of any thread is not made but counted. */
static int watch_calls(int threads) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_call;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, NULL);
  const int always[] = {SYS_write, SYS_exit_group, SYS_rt_sigreturn};
  const int of_threads[] = {SYS_futex,           SYS_clock_gettime,     SYS_sched_yield, SYS_getcpu,
                            SYS_sched_setaffinity, SYS_sched_getaffinity, SYS_restart_syscall};
  struct sock_filter filter[32];
  int size = 0;
  filter[size++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  const int all = 3 + (threads > 1 ? 7 : 0);
  for (int i = 0; i < all; ++i) {
    const int call = i < 3 ? always[i] : of_threads[i - 3];
    filter[size++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1);
    filter[size++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  filter[size++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
  const struct sock_fprog program = {(unsigned short)size, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int runs = atoi(argv[3]);
  edge_options options = EDGE_OPTIONS;
  options.threads = atoi(argv[2]);
  edge_model* model;
  if (edge_open(argv[1], &options, &model) || edge_run(model)) return fprintf(stderr, "%s\n", edge_error()), 1;
  static char line[4096];
  setvbuf(stdout, line, _IOFBF, sizeof line);

  /* The least of some windows: the system itself may take pages away at any time. */
  long allocated = -1, faulted = -1, first_allocated = 0, first_faulted = 0;
  for (int window = 0; window < WINDOWS; ++window) {
    const long faults_before = faults(), allocations_before = allocations;
    for (int i = 0; i < runs; ++i) {
      if (edge_run(model)) return fprintf(stderr, "%s\n", edge_error()), 1;
    }
    const long fault_count = faults() - faults_before, allocation_count = allocations - allocations_before;
    if (window == 0) first_allocated = allocation_count, first_faulted = fault_count;
    if (allocated < 0 || allocation_count < allocated) allocated = allocation_count;
    if (faulted < 0 || fault_count < faulted) faulted = fault_count;
  }

  const int watched = watch_calls(options.threads) == 0;
  for (int i = 0; watched && i < runs; ++i) {
    if (edge_run(model)) return 1;
  }
  const int count = call_count;
  printf("{\"allocations\": %ld, \"faults\": %ld, \"allocations_at_first\": %ld, \"faults_at_first\": %ld, "
         "\"watched\": %s, \"calls\": [",
         allocated, faulted, first_allocated, first_faulted, watched ? "true" : "false");
  for (int i = 0; i < count && i < MOST_CALLS; ++i) printf("%s%d", i ? ", " : "", calls[i]);
  printf("]}\n");
  fflush(stdout);
  _exit(0);
}
