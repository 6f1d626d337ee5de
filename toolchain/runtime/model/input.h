// One input of a model: memory of the host's, which stays where it is, and what the device gets of it.
#ifndef MODEL_INPUT_H_
#define MODEL_INPUT_H_

#include <tvm/ffi/container/tensor.h>

#include <memory>
#include <string>

#include "../opencl/mapping.h"
#include "manifest.h"

namespace edge {

// On the CPU both are the same memory. A device that shares the host's memory is lent it for each run;
// others, and drivers that map a buffer to another place each time, get a copy.
class Input {
 public:
  // Holds zeros.
  Input(const TensorSpec& spec, DLDevice device);

  // The host's, aligned to 64 bytes; out of bounds between Give and TakeBack, and once `Check` throws.
  char* data() const { return place_; }

  // What the model is called with.
  const tvm::ffi::Tensor& argument() const { return argument_; }

  // Before a run. A fault of kExitRunFailed where the memory did not come back after the last one; what
  // the device refuses is a tvm::ffi::Error, and the memory is lost from then on.
  void Give();

  // After a run, be it as it may; `Check` says whether that worked.
  void TakeBack() noexcept;
  void Check() const;

 private:
  bool MapAtOnePlace();
  void EndMapping();

  tvm::ffi::Tensor argument_;
  tvm::ffi::Tensor copied_;  // the host's, where the device gets a copy
  std::unique_ptr<opencl::Mapping> mapping_;
  bool is_lent_ = false;
  char* place_ = nullptr;
  std::string lost_;  // why the memory is not there any more
};

}  // namespace edge

#endif  // MODEL_INPUT_H_
