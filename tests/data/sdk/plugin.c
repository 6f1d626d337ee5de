/* A plug-in, as hosts such as Python or GStreamer open them: for itself alone. */
#include <edge_model.h>
#include <stdio.h>

int run_release(const char* path) {
  edge_model* model;
  if (edge_open(path, NULL, &model) || edge_run(model)) return fprintf(stderr, "%s\n", edge_error()), 1;
  edge_close(model);
  return 0;
}
