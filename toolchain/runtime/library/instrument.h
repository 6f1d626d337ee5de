// What the runner asks of an open model beside what applications may: to be told of each call in a run.
#ifndef LIBRARY_INSTRUMENT_H_
#define LIBRARY_INSTRUMENT_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/function.h>

#include "edge_model.h"

namespace edge {

// See Model::Instrument.
void Instrument(edge_model* model, const tvm::ffi::Function& hook);

// What computes the model's kernels.
DLDevice DeviceOf(const edge_model* model);

}  // namespace edge

#endif  // LIBRARY_INSTRUMENT_H_
