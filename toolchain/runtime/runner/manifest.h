// The part of a release's manifest.json that the runner needs.
#ifndef RUNNER_MANIFEST_H_
#define RUNNER_MANIFEST_H_

#include <dlpack/dlpack.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dtype.h"

namespace runner {

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  const DType* dtype;
};

struct Manifest {
  std::string path;
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

}  // namespace runner

#endif  // RUNNER_MANIFEST_H_
