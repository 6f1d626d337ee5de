/* An application that passes files of pictures: files RELEASE PICTURE.jpg PICTURE.png. The release takes pictures and
 * finds objects. It prints the size of the JPEG file's picture and a sum of its pixels, of which the PNG file has the
 * same. With a fourth argument, there are no libraries that decode. */
#include <edge_model.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(holds) ((holds) ? (void)0 : fail(#holds, __LINE__))

static void fail(const char* what, int line) {
  fprintf(stderr, "line %d: %s (%s)\n", line, what, edge_error());
  exit(1);
}

static edge_image of_file(const char* path, int32_t format) {
  static char contents[2][1 << 20];
  edge_image image = EDGE_IMAGE;
  FILE* file = fopen(path, "rb");
  MUST(file != NULL);
  image.format = format;
  image.data = contents[format - EDGE_JPEG];
  image.bytes = fread(contents[format - EDGE_JPEG], 1, sizeof contents[0], file);
  fclose(file);
  return image;
}

static void check_objects(const edge_objects* found, const edge_objects* expected, const edge_object* copies) {
  MUST(found->count == expected->count && found->count > 0);
  MUST(memcmp(found->objects, copies, (size_t)found->count * sizeof *copies) == 0);
}

static void check_faults(edge_model* model, edge_image image) {
  edge_image pixels = EDGE_IMAGE;
  --image.bytes;
  MUST(edge_decode_image(model, &image, &pixels) == EDGE_USAGE && strstr(edge_error(), "damaged") != NULL);
  image.bytes = 20;
  MUST(edge_run_image(model, &image, NULL) == EDGE_USAGE && strstr(edge_error(), "ends before") != NULL);
  image.bytes = 0;
  MUST(edge_run_image(model, &image, NULL) == EDGE_USAGE && strstr(edge_error(), "empty") != NULL);
  image.width = 5;
  MUST(edge_run_image(model, &image, NULL) == EDGE_USAGE && strstr(edge_error(), "its size itself") != NULL);
  image.format = EDGE_RGB;
  MUST(edge_decode_image(model, &image, &pixels) == EDGE_USAGE);
  image.format = EDGE_PNG + 1;
  MUST(edge_run_image(model, &image, NULL) == EDGE_USAGE && strstr(edge_error(), "unknown format") != NULL);
}

static void check_crops(edge_model* model, const edge_image* pixels) {
  edge_image crop = EDGE_IMAGE;
  edge_object box = {0, 0, 3.5f, 2.f, 20.2f, 1e9f, "", 0, NULL};
  MUST(edge_crop_image(pixels, &box, &crop) == EDGE_OK);
  MUST(crop.width == 18 && crop.height == pixels->height - 2 && crop.format == EDGE_RGB);
  MUST((const char*)crop.data == (const char*)pixels->data + (2 * pixels->width + 3) * 3);
  MUST(edge_run_image(model, &crop, NULL) == EDGE_OK);
  box.left = 21.f;
  MUST(edge_crop_image(pixels, &box, &crop) == EDGE_USAGE && strstr(edge_error(), "no pixel") != NULL);
  static unsigned char frame[16 * 12 * 3 / 2];
  edge_image camera = {sizeof camera, EDGE_NV12, 16, 12, frame, sizeof frame, 0, NULL, 0, 0};
  box.left = 5, box.top = 3, box.right = 10, box.bottom = 9;
  MUST(edge_crop_image(&camera, &box, &crop) == EDGE_OK && crop.width == 6 && crop.height == 7);
  MUST((const unsigned char*)crop.data == frame + 2 * 16 + 4 && (const unsigned char*)crop.chroma == frame + 13 * 16 + 4);
  MUST(edge_run_image(model, &crop, NULL) == EDGE_OK);
}

int main(int argc, char** argv) {
  edge_model* model;
  MUST(argc >= 4 && edge_open(argv[1], NULL, &model) == EDGE_OK);
  const edge_image jpeg = of_file(argv[2], EDGE_JPEG), png = of_file(argv[3], EDGE_PNG);
  edge_objects expected = EDGE_OBJECTS, found = EDGE_OBJECTS;
  edge_image pixels = EDGE_IMAGE, again = EDGE_IMAGE;
  if (argc > 4) {
    MUST(edge_run_image(model, &jpeg, NULL) == EDGE_UNFIT && strstr(edge_error(), "libturbojpeg0") != NULL);
    MUST(edge_run_image(model, &png, NULL) == EDGE_UNFIT && strstr(edge_error(), "libpng16-16") != NULL);
    edge_close(model);
    return 0;
  }
  MUST(edge_decode_image(model, &jpeg, &pixels) == EDGE_OK && pixels.format == EDGE_RGB);
  unsigned long sum = 0;
  for (size_t i = 0; i < pixels.bytes; ++i) sum = (sum * 31 + ((const unsigned char*)pixels.data)[i]) & 0xFFFFFFFFul;
  printf("%dx%d %lu\n", pixels.width, pixels.height, sum);
  MUST(edge_run_image(model, &pixels, &expected) == EDGE_OK && expected.object_size == sizeof(edge_object));
  static edge_object copies[1000];
  memcpy(copies, expected.objects, (size_t)expected.count * sizeof *copies);
  MUST(edge_run_image(model, &jpeg, &found) == EDGE_OK);
  check_objects(&found, &expected, copies);
  MUST(edge_run_image(model, &png, &found) == EDGE_OK);
  check_objects(&found, &expected, copies);
  MUST(edge_decode_image(model, &png, &again) == EDGE_OK && again.data == pixels.data); /* nothing was allocated */
  check_crops(model, &again);
  check_faults(model, jpeg);
  check_faults(model, png);
  edge_close(model);
  return 0;
}
