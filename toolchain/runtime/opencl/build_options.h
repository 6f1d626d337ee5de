// What a driver's compiler is told beside the source.
#ifndef OPENCL_BUILD_OPTIONS_H_
#define OPENCL_BUILD_OPTIONS_H_

#include <string>

#include "devices.h"

namespace opencl {

// The language of the kernels, OpenCL C 1.2, where the device has that. There every work-group is whole,
// which a compiler may count on; products and sums in one expression become one operation, rounded once,
// as OpenCL C always allows. Nothing that changes results otherwise: with -cl-fast-relaxed-math there are
// no infinities, and a maximum starts from minus infinity; with -cl-unsafe-math-optimizations sums in half
// precision may leave the blocks that they were put into. The variable EDGE_OPENCL_OPTIONS adds more. A
// kernel whose arguments are images is told so.
std::string BuildOptions(const Limits& limits, bool images);

}  // namespace opencl

#endif  // OPENCL_BUILD_OPTIONS_H_
