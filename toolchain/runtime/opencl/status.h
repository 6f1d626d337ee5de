// What OpenCL's error codes are called, and what to do about them.
#ifndef OPENCL_STATUS_H_
#define OPENCL_STATUS_H_

#include <string>

#include "cl.h"

namespace opencl {

// Returns a code as the specification names it, such as "CL_OUT_OF_RESOURCES (-5)".
std::string StatusName(cl_int status);

// Returns what somebody who meets a code may do, in words that follow a semicolon.
std::string Advice(cl_int status);

// Throws tvm::ffi::Error unless a call succeeded; `doing` says what it was for.
inline void Check(cl_int status, const char* doing);

[[noreturn]] void Fail(cl_int status, const std::string& doing);

inline void Check(cl_int status, const char* doing) {
  if (status != CL_SUCCESS) Fail(status, doing);
}

}  // namespace opencl

#endif  // OPENCL_STATUS_H_
