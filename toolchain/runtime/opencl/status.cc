// See status.h.
#include "status.h"

#include <tvm/ffi/error.h>

#include <map>

namespace opencl {
namespace {

const std::map<cl_int, const char*>& Names() {
  static const std::map<cl_int, const char*> names = {
      {0, "CL_SUCCESS"},
      {-1, "CL_DEVICE_NOT_FOUND"},
      {-2, "CL_DEVICE_NOT_AVAILABLE"},
      {-3, "CL_COMPILER_NOT_AVAILABLE"},
      {-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
      {-5, "CL_OUT_OF_RESOURCES"},
      {-6, "CL_OUT_OF_HOST_MEMORY"},
      {-7, "CL_PROFILING_INFO_NOT_AVAILABLE"},
      {-8, "CL_MEM_COPY_OVERLAP"},
      {-11, "CL_BUILD_PROGRAM_FAILURE"},
      {-12, "CL_MAP_FAILURE"},
      {-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
      {-15, "CL_COMPILE_PROGRAM_FAILURE"},
      {-17, "CL_LINK_PROGRAM_FAILURE"},
      {-30, "CL_INVALID_VALUE"},
      {-31, "CL_INVALID_DEVICE_TYPE"},
      {-32, "CL_INVALID_PLATFORM"},
      {-33, "CL_INVALID_DEVICE"},
      {-34, "CL_INVALID_CONTEXT"},
      {-36, "CL_INVALID_COMMAND_QUEUE"},
      {-38, "CL_INVALID_MEM_OBJECT"},
      {-42, "CL_INVALID_BINARY"},
      {-43, "CL_INVALID_BUILD_OPTIONS"},
      {-44, "CL_INVALID_PROGRAM"},
      {-45, "CL_INVALID_PROGRAM_EXECUTABLE"},
      {-46, "CL_INVALID_KERNEL_NAME"},
      {-48, "CL_INVALID_KERNEL"},
      {-49, "CL_INVALID_ARG_INDEX"},
      {-50, "CL_INVALID_ARG_VALUE"},
      {-51, "CL_INVALID_ARG_SIZE"},
      {-52, "CL_INVALID_KERNEL_ARGS"},
      {-53, "CL_INVALID_WORK_DIMENSION"},
      {-54, "CL_INVALID_WORK_GROUP_SIZE"},
      {-55, "CL_INVALID_WORK_ITEM_SIZE"},
      {-59, "CL_INVALID_OPERATION"},
      {-61, "CL_INVALID_BUFFER_SIZE"},
      {-63, "CL_INVALID_GLOBAL_WORK_SIZE"},
      {-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
  };
  return names;
}

}  // namespace

std::string StatusName(cl_int status) {
  const auto found = Names().find(status);
  const std::string number = std::to_string(status);
  return found == Names().end() ? "status " + number
                                : std::string(found->second) + " (" + number + ")";
}

std::string Advice(cl_int status) {
  switch (status) {
    case CL_DEVICE_NOT_AVAILABLE:
    case CL_OUT_OF_RESOURCES:
    case CL_EXEC_STATUS_ERROR:
    case CL_INVALID_CONTEXT:
    case CL_INVALID_COMMAND_QUEUE:
      return "the driver lost the device or has nothing left for it: see `dmesg` there, end what else uses it, and "
             "run the same command again";
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_HOST_MEMORY:
    case CL_INVALID_BUFFER_SIZE:
      return "end what else uses the device's memory, or take smaller inputs, fewer at once, or --float16";
    case CL_MAP_FAILURE:
      return "EDGE_OPENCL_COPY=1 does without mapped memory";
    default:
      return "another driver may do: EDGE_OPENCL_LIBRARY names its library";
  }
}

void Fail(cl_int status, const std::string& doing) {
  TVM_FFI_THROW(RuntimeError) << "OpenCL: " << doing << " failed: " << StatusName(status) << "; " << Advice(status);
  TVM_FFI_UNREACHABLE();
}

}  // namespace opencl
