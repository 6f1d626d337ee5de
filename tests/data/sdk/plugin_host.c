/* plugin_host PLUGIN RELEASE */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  void* plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (argc != 3 || !plugin) return fprintf(stderr, "%s\n", dlerror()), 2;
  int (*run)(const char*);
  *(void**)&run = dlsym(plugin, "run_release");
  return run(argv[2]);
}
