/* Finds objects in a picture with one model, and classifies each with another one of the same store:
 *   crops ROOT/slots/detector/current ROOT/slots/classifier/current PICTURE.ppm
 * Both releases have steps for pictures. A line for each object: its box, and what each model calls it. */
#include <edge_model.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char* what) {
  fprintf(stderr, "crops: %s: %s\n", what, edge_error());
  return 1;
}

/* The pixels of a binary PPM of 8 bits, which is what `convert in.jpg out.ppm` writes. */
static unsigned char* read_picture(const char* path, edge_image* image) {
  int levels = 0;
  FILE* file = fopen(path, "rb");
  if (!file) return NULL;
  unsigned char* pixels = NULL;
  if (fscanf(file, "P6 %d %d %d", &image->width, &image->height, &levels) == 3 && levels == 255 &&
      image->width > 0 && image->height > 0 && image->width <= 32768 && image->height <= 32768) {
    fgetc(file); /* the line's end */
    image->format = EDGE_RGB;
    image->stride = (size_t)image->width * 3;
    image->bytes = image->stride * (size_t)image->height;
    pixels = malloc(image->bytes);
    if (pixels && fread(pixels, 1, image->bytes, file) != image->bytes) {
      free(pixels);
      pixels = NULL;
    }
  }
  fclose(file);
  image->data = pixels;
  return pixels;
}

int main(int argc, char** argv) {
  if (argc != 4) return fprintf(stderr, "usage: crops DETECTOR CLASSIFIER PICTURE.ppm\n"), 2;
  edge_options options = EDGE_OPTIONS;
  options.threads = EDGE_ALL_CPUS;
  edge_model *detector, *classifier = NULL;
  edge_image picture = EDGE_IMAGE;
  edge_crops crops = EDGE_CROPS;
  if (edge_open(argv[1], &options, &detector)) return fail(argv[1]);
  if (edge_open(argv[2], &options, &classifier)) return fail(argv[2]);
  unsigned char* pixels = read_picture(argv[3], &picture);
  if (!pixels) return fprintf(stderr, "crops: %s is not a binary PPM\n", argv[3]), 1;
  if (edge_run_crops(detector, classifier, &picture, 100, &crops)) return fail("the picture");
  for (int32_t i = 0; i < crops.count; ++i) {
    const edge_crop* crop = (const edge_crop*)((const char*)crops.crops + (size_t)i * crops.crop_size);
    const edge_object* box = crop->box;
    printf("%.9g %.9g %.9g %.9g %s %.4f", box->left, box->top, box->right, box->bottom, box->label, box->score);
    if (crop->count) printf(" %s %.4f", crop->objects->label, crop->objects->score);
    printf("\n");
  }
  edge_close(classifier);
  edge_close(detector);
  free(pixels);
  return 0;
}
