// A file of inputs for a model with one of 3 bytes and one of 2 x 2 floats, as one sample, two, and
// as many as its first byte says.
#include "runner/samples.h"

#include <array>

#include "fuzz.h"
#include "model/fault.h"

namespace {

const int64_t kFlat[] = {3};
const int64_t kSquare[] = {2, 2};

}  // namespace

// Stands for the library. Each input is as large as it says, for the sanitizer to see more.
struct edge_model {
  std::array<char, 3> flat;
  std::array<char, 16> square;
};

int32_t edge_inputs(const edge_model*) { return 2; }
int32_t edge_outputs(const edge_model*) { return 0; }
const char* edge_error() { return "none"; }
int edge_output(edge_model*, int32_t, edge_tensor*) { return EDGE_USAGE; }
int edge_reset(edge_model*) { return EDGE_OK; }

int edge_input(edge_model* model, int32_t number, edge_tensor* tensor) {
  *tensor = EDGE_TENSOR;
  tensor->name = number == 0 ? "flat" : "square";
  tensor->dtype = number == 0 ? "uint8" : "float32";
  tensor->rank = number == 0 ? 1 : 2;
  tensor->shape = number == 0 ? kFlat : kSquare;
  tensor->data = number == 0 ? model->flat.data() : model->square.data();
  tensor->bytes = number == 0 ? model->flat.size() : model->square.size();
  return EDGE_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::File file;
  const std::string& path = file.With(data, size);
  for (const int64_t count : {0, 2, size == 0 ? 1 : data[0] + 1}) {
    edge_model model;
    fuzz::Accepts<edge::Fault>([&] {
      const runner::Samples samples(&model, path, count, runner::Order::kAlone);
      for (int64_t i = 0; i < samples.count(); ++i) samples.Feed(i);
    });
  }
  return 0;
}
