/* crops DETECTOR CLASSIFIER: runs the two in a row on pictures of noise, by one call and step by step. */
#include <edge_model.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__ /* it watches allocations itself */
static const long allocations = 0;
#else
#include "allocations.h"
#endif

#define WIDTH 96
#define HEIGHT 60
#define MUST(holds) ((holds) ? (void)0 : fail(#holds, __LINE__))

static unsigned char pixels[WIDTH * HEIGHT * 3];

static void fail(const char* what, int line) {
  fprintf(stderr, "line %d: %s (%s)\n", line, what, edge_error());
  exit(1);
}

static edge_image drawn(unsigned seed, int32_t format) {
  for (size_t i = 0; i < sizeof pixels; ++i) {
    seed = seed * 1664525u + 1013904223u;
    pixels[i] = (unsigned char)(seed >> 24);
  }
  edge_image image = EDGE_IMAGE;
  image.format = format;
  image.width = WIDTH;
  image.height = HEIGHT;
  image.data = pixels;
  image.bytes = format == EDGE_RGB ? sizeof pixels : sizeof pixels / 2;
  return image;
}

/* One call gives what the steps give, to the last bit. */
static int32_t compare(edge_model* first, edge_model* second, const edge_image* image) {
  static edge_object boxes[1000], kept[1000];
  edge_crops crops = EDGE_CROPS;
  edge_objects found = EDGE_OBJECTS, inner = EDGE_OBJECTS;
  MUST(edge_run_crops(first, second, image, 1000, &crops) == EDGE_OK && crops.boxes == crops.count);
  MUST(crops.crop_size == sizeof(edge_crop) && crops.object_size == sizeof(edge_object));
  for (int32_t i = 0; i < crops.count; ++i) {
    MUST(crops.crops[i].count == 1 && crops.crops[i].text[0] == '\0');
    boxes[i] = *crops.crops[i].box;
    kept[i] = crops.crops[i].objects[0];
  }
  MUST(edge_run_image(first, image, &found) == EDGE_OK && found.count == crops.count);
  for (int32_t i = 0; i < found.count; ++i) {
    edge_image part = EDGE_IMAGE;
    MUST(memcmp(&found.objects[i], &boxes[i], sizeof boxes[i]) == 0);
    MUST(edge_crop_image(image, &found.objects[i], &part) == EDGE_OK);
    MUST(edge_run_image(second, &part, &inner) == EDGE_OK && inner.count == 1);
    MUST(memcmp(inner.objects, &kept[i], sizeof kept[i]) == 0);
  }
  return found.count;
}

/* The second model finds boxes, too: they are moved to the whole picture. */
static void check_places(edge_model* first, edge_model* second, const edge_image* image) {
  edge_crops crops = EDGE_CROPS;
  MUST(edge_run_crops(first, second, image, 3, &crops) == EDGE_OK && crops.count == 3 && crops.boxes > 3);
  for (int32_t i = 0; i < crops.count; ++i) {
    const edge_object* box = crops.crops[i].box;
    MUST(crops.crops[i].count > 0);
    for (int32_t k = 0; k < crops.crops[i].count; ++k) {
      const edge_object* object = &crops.crops[i].objects[k];
      MUST(object->left > box->left - 1 && object->top > box->top - 1);
      MUST(object->right < box->right + 1 && object->bottom < box->bottom + 1);
    }
  }
}

static void check_faults(edge_model* first, edge_model* second, const edge_image* image) {
  edge_crops crops = EDGE_CROPS;
  MUST(edge_run_crops(NULL, second, image, 1, &crops) == EDGE_USAGE);
  MUST(edge_run_crops(first, NULL, image, 1, &crops) == EDGE_USAGE);
  MUST(edge_run_crops(first, first, image, 1, &crops) == EDGE_USAGE && strstr(edge_error(), "same one"));
  MUST(edge_run_crops(first, second, image, 0, &crops) == EDGE_USAGE && strstr(edge_error(), "between 1 and 1000"));
  MUST(edge_run_crops(first, second, image, 1001, &crops) == EDGE_USAGE);
  MUST(edge_run_crops(first, second, image, 1, NULL) == EDGE_USAGE && strstr(edge_error(), "EDGE_CROPS"));
  MUST(edge_run_crops(first, second, NULL, 1, &crops) == EDGE_USAGE);
  MUST(edge_run_crops(second, first, image, 1, &crops) == EDGE_USAGE);
  MUST(strncmp(edge_error(), "the first model, classifier: the release finds no boxes", 55) == 0);
  edge_image wrong = *image;
  wrong.bytes = 5;
  MUST(edge_run_crops(first, second, &wrong, 1, &crops) == EDGE_USAGE);
  MUST(strncmp(edge_error(), "the first model, detector: ", 27) == 0);
  MUST(crops.count == 0 && crops.crops == NULL);
}

int main(int argc, char** argv) {
  edge_model *first, *second, *again;
  MUST(argc == 3 && edge_open(argv[1], NULL, &first) == EDGE_OK && edge_open(argv[1], NULL, &again) == EDGE_OK);
  MUST(edge_open(argv[2], NULL, &second) == EDGE_OK);
  edge_image image = drawn(1, EDGE_RGB);
  const int32_t boxes = compare(first, second, &image);
  MUST(boxes > 3);
  const long before = allocations;
  for (unsigned seed = 2; seed < 12; ++seed) { /* other boxes, of other sizes */
    image = drawn(seed, EDGE_RGB);
    compare(first, second, &image);
  }
  MUST(allocations == before);
  image = drawn(3, EDGE_NV12);
  MUST(compare(first, second, &image) > 0);
  image = drawn(1, EDGE_RGB);
  check_places(first, again, &image);
  check_faults(first, second, &image);
  edge_close(again);
  edge_close(second);
  edge_close(first);
  printf("%d\n", boxes);
  return 0;
}
