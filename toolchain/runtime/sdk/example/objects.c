/* Prints the objects of JPEG files, such as a camera sends: objects RELEASE FILE.jpg... */
#include <edge_model.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char* what) {
  fprintf(stderr, "objects: %s: %s\n", what, edge_error());
  return 1;
}

static void* read_file(const char* path, size_t* bytes) {
  FILE* file = fopen(path, "rb");
  if (!file) return NULL;
  void* contents = fseek(file, 0, SEEK_END) == 0 && ftell(file) > 0 ? malloc((size_t)ftell(file)) : NULL;
  *bytes = contents ? (size_t)ftell(file) : 0;
  rewind(file);
  if (contents) *bytes = fread(contents, 1, *bytes, file);
  fclose(file);
  return contents;
}

int main(int argc, char** argv) {
  edge_model* model;
  if (argc < 3) return fprintf(stderr, "usage: objects RELEASE FILE.jpg...\n"), 2;
  if (edge_open(argv[1], NULL, &model)) return fail(argv[1]);
  for (int i = 2; i < argc; ++i) {
    edge_image image = EDGE_IMAGE;
    edge_objects found = EDGE_OBJECTS;
    image.format = EDGE_JPEG;
    image.data = read_file(argv[i], &image.bytes);
    if (edge_run_image(model, &image, &found)) return fail(argv[i]);
    for (int32_t n = 0; n < found.count; ++n) {
      const edge_object* at = (const edge_object*)((const char*)found.objects + (size_t)n * found.object_size);
      printf("%s %d %s %.3f %.1f %.1f %.1f %.1f\n", argv[i], at->number, at->label, at->score, at->left, at->top,
             at->right, at->bottom);
    }
    free((void*)image.data);
  }
  return edge_close(model), 0;
}
