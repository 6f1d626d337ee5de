// The part of a release's manifest.json that is needed to run it.
#ifndef MODEL_MANIFEST_H_
#define MODEL_MANIFEST_H_

#include <dlpack/dlpack.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dtype.h"

namespace edge {

// How much of an output is the result, where its size depends on the data.
struct Bound {
  int axis = -1;      // -1: all of it
  std::string count;  // the output, of one int64, that says how many of its elements along the axis
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  const DType* dtype;
  Bound bound = {};
};

struct Manifest {
  std::string path;
  std::string name;
  std::string tvm;  // versions that the library was compiled with
  std::string tvm_ffi;
  std::string library;  // paths, already inside the release's folder
  std::string params;
  std::string entry;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  std::vector<std::string> params_order;
  std::vector<std::string> cpu_features;
  DLDeviceType device;  // what computes
};

// Reads DIR/manifest.json; keys it does not know are left alone. Faults are kExitInput.
Manifest ReadManifest(const std::string& release);

}  // namespace edge

#endif  // MODEL_MANIFEST_H_
