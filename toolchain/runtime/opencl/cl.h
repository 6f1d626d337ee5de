// The part of OpenCL 1.2 that is used here, declared as Khronos' CL/cl.h does: boards have the
// library, and the compiler that builds this has no OpenCL headers.
// Source: OpenCL 1.2 Specification, https://registry.khronos.org/OpenCL/specs/opencl-1.2.pdf
#ifndef OPENCL_CL_H_
#define OPENCL_CL_H_

#include <cstddef>
#include <cstdint>

extern "C" {

using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_ulong = uint64_t;
using cl_bool = cl_uint;
using cl_bitfield = cl_ulong;

using cl_platform_id = struct _cl_platform_id*;
using cl_device_id = struct _cl_device_id*;
using cl_context = struct _cl_context*;
using cl_command_queue = struct _cl_command_queue*;
using cl_mem = struct _cl_mem*;
using cl_program = struct _cl_program*;
using cl_kernel = struct _cl_kernel*;
using cl_event = struct _cl_event*;

struct cl_image_format {
  cl_uint image_channel_order;
  cl_uint image_channel_data_type;
};

struct cl_image_desc {
  cl_uint image_type;
  size_t image_width;
  size_t image_height;
  size_t image_depth;
  size_t image_array_size;
  size_t image_row_pitch;
  size_t image_slice_pitch;
  cl_uint num_mip_levels;
  cl_uint num_samples;
  cl_mem mem_object;
};

using ContextCallback = void (*)(const char*, const void*, size_t, void*);
using ProgramCallback = void (*)(cl_program, void*);
}

constexpr cl_int CL_SUCCESS = 0;
constexpr cl_int CL_DEVICE_NOT_FOUND = -1;
constexpr cl_int CL_DEVICE_NOT_AVAILABLE = -2;
constexpr cl_int CL_MEM_OBJECT_ALLOCATION_FAILURE = -4;
constexpr cl_int CL_OUT_OF_RESOURCES = -5;
constexpr cl_int CL_OUT_OF_HOST_MEMORY = -6;
constexpr cl_int CL_BUILD_PROGRAM_FAILURE = -11;
constexpr cl_int CL_MAP_FAILURE = -12;
constexpr cl_int CL_EXEC_STATUS_ERROR = -14;
constexpr cl_int CL_INVALID_CONTEXT = -34;
constexpr cl_int CL_INVALID_COMMAND_QUEUE = -36;
constexpr cl_int CL_INVALID_BUILD_OPTIONS = -43;
constexpr cl_int CL_INVALID_WORK_GROUP_SIZE = -54;
constexpr cl_int CL_INVALID_WORK_ITEM_SIZE = -55;
constexpr cl_int CL_INVALID_BUFFER_SIZE = -61;
constexpr cl_int CL_PLATFORM_NOT_FOUND_KHR = -1001;

constexpr cl_bool CL_TRUE = 1;

constexpr cl_uint CL_PLATFORM_VERSION = 0x0901;
constexpr cl_uint CL_PLATFORM_NAME = 0x0902;

constexpr cl_bitfield CL_DEVICE_TYPE_CPU = 1 << 1;
constexpr cl_bitfield CL_DEVICE_TYPE_GPU = 1 << 2;
constexpr cl_bitfield CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;

constexpr cl_uint CL_DEVICE_TYPE = 0x1000;
constexpr cl_uint CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002;
constexpr cl_uint CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004;
constexpr cl_uint CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005;
constexpr cl_uint CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C;
constexpr cl_uint CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010;
constexpr cl_uint CL_DEVICE_IMAGE2D_MAX_WIDTH = 0x1011;
constexpr cl_uint CL_DEVICE_IMAGE2D_MAX_HEIGHT = 0x1012;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F;
constexpr cl_uint CL_DEVICE_LOCAL_MEM_SIZE = 0x1023;
constexpr cl_uint CL_DEVICE_AVAILABLE = 0x1027;
constexpr cl_uint CL_DEVICE_COMPILER_AVAILABLE = 0x1028;
constexpr cl_uint CL_DEVICE_NAME = 0x102B;
constexpr cl_uint CL_DRIVER_VERSION = 0x102D;
constexpr cl_uint CL_DEVICE_VERSION = 0x102F;
constexpr cl_uint CL_DEVICE_EXTENSIONS = 0x1030;
constexpr cl_uint CL_DEVICE_HALF_FP_CONFIG = 0x1033;
constexpr cl_uint CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035;
constexpr cl_uint CL_DEVICE_IMAGE_PITCH_ALIGNMENT_KHR = 0x104A;

constexpr cl_bitfield CL_FP_DENORM = 1 << 0;

constexpr cl_bitfield CL_MEM_READ_WRITE = 1 << 0;
constexpr cl_bitfield CL_MEM_READ_ONLY = 1 << 2;
constexpr cl_bitfield CL_MEM_ALLOC_HOST_PTR = 1 << 4;

constexpr cl_bitfield CL_MAP_READ = 1 << 0;
constexpr cl_bitfield CL_MAP_WRITE = 1 << 1;
constexpr cl_bitfield CL_MAP_WRITE_INVALIDATE_REGION = 1 << 2;

constexpr cl_uint CL_MEM_OBJECT_IMAGE2D = 0x10F1;
constexpr cl_uint CL_RGBA = 0x10B5;
constexpr cl_uint CL_HALF_FLOAT = 0x10DD;
constexpr cl_uint CL_FLOAT = 0x10DE;

constexpr cl_uint CL_PROGRAM_BINARY_SIZES = 0x1165;
constexpr cl_uint CL_PROGRAM_BINARIES = 0x1166;
constexpr cl_uint CL_PROGRAM_BUILD_LOG = 0x1183;

constexpr cl_uint CL_KERNEL_WORK_GROUP_SIZE = 0x11B0;
constexpr cl_uint CL_KERNEL_LOCAL_MEM_SIZE = 0x11B2;
constexpr cl_uint CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE = 0x11B3;

#endif  // OPENCL_CL_H_
