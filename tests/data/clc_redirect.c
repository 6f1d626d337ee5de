/* Mesa's compiler reads OpenCL's built-in functions from one absolute path; here they are below CLC_ROOT.
 * Build: cc -shared -fPIC -o libredirect.so clc_redirect.c -ldl; load it before all others. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static const char *moved(const char *path, char *place, size_t size) {
  static const char built_ins[] = "/usr/lib/clc/";
  const char *root = getenv("CLC_ROOT");
  if (!root || strncmp(path, built_ins, sizeof(built_ins) - 1) != 0) return path;
  return (size_t)snprintf(place, size, "%s%s", root, path) < size ? place : path;
}

#define OPEN(name)                                                                                                     \
  int name(const char *path, int flags, ...) {                                                                         \
    char place[4096];                                                                                                  \
    va_list more;                                                                                                      \
    va_start(more, flags);                                                                                             \
    const mode_t mode = va_arg(more, mode_t);                                                                          \
    va_end(more);                                                                                                      \
    return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(moved(path, place, sizeof(place)), flags, mode); \
  }
OPEN(open)
OPEN(open64)
