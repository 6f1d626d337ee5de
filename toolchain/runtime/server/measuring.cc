// See measuring.h.
#include "measuring.h"

#include <time.h>
#include <tvm/ffi/error.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/tensor.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../model/device.h"
#include "../threads/launcher.h"

namespace board_server {
namespace {

// A prime, so that the rows of a matrix differ.
constexpr size_t kPatternSize = 65521;
constexpr int64_t kMostMilliseconds = 10000;
constexpr int kCanarySteps = 100000;
constexpr int64_t kMostPassingBytes = int64_t{1} << 30;
constexpr size_t kCacheLine = 64;

// The process serves one session.
std::vector<char> passing;

uint32_t NextRandom(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 16;
}

// k/128, for k from 1 to 128, as the types of floats write it.
uint32_t FloatBits(uint32_t k) {
  const float value = static_cast<float>(k) / 128;
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

uint16_t HalfBits(uint32_t k) {
  constexpr uint32_t kBiasDifference = (127 - 15) << 23;
  return static_cast<uint16_t>((FloatBits(k) - kBiasDifference) >> 13);
}

uint64_t DoubleBits(uint32_t k) {
  const double value = static_cast<double>(k) / 128;
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// The bits of one number of a type. Throws ValueError.
uint64_t NumberBits(const DLDataType& type, uint32_t random) {
  const uint32_t k = 1 + random % 128;
  switch (type.code) {
    case kDLFloat:
      if (type.bits == 64) return DoubleBits(k);
      if (type.bits == 32) return FloatBits(k);
      if (type.bits == 16) return HalfBits(k);
      break;
    case kDLBfloat:
      if (type.bits == 16) return FloatBits(k) >> 16;
      break;
    case kDLBool:
      return random & 1;
    case kDLInt:
    case kDLUInt:
      if (type.bits == 4) return 0x11 * (1 + random % 3);  // two in a byte
      if (type.bits >= 8 && type.bits <= 64) return 1 + random % 3;
      break;
  }
  TVM_FFI_THROW(ValueError) << "the board has no numbers of type code " << int{type.code}
                            << " with " << int{type.bits} << " bits to measure with";
  TVM_FFI_UNREACHABLE();
}

std::vector<char> Pattern(const DLDataType& type, size_t bytes) {
  std::vector<char> pattern(kPatternSize * bytes);
  uint32_t state = 1;
  for (size_t i = 0; i < kPatternSize; ++i) {
    const uint64_t bits = NumberBits(type, NextRandom(&state));
    memcpy(&pattern[i * bytes], &bits, bytes);  // little-endian, as all that TVM knows
  }
  return pattern;
}

// Nothing is known about the value from here on, so that the work cannot be done in advance.
inline void Hide(uint32_t* integer, double* real) {
#if defined(__x86_64__)
  asm volatile("" : "+r"(*integer), "+x"(*real));
#elif defined(__riscv)
  asm volatile("" : "+r"(*integer), "+f"(*real));
#else
  asm volatile("" : "+r"(*integer), "+w"(*real));
#endif
}

void Work() {
  uint32_t integer = 1;
  double real = 2;
  for (int i = 0; i < kCanarySteps; ++i) {
    integer = integer * 1664525u + 1013904223u;
    real = real * 0.75 + 0.25;
    Hide(&integer, &real);
  }
}

double MonotonicSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

namespace {

void FillHere(DLTensor* tensor) {
  if (!tvm::ffi::IsContiguous(*tensor)) {
    TVM_FFI_THROW(ValueError) << "only a tensor without gaps can be filled";
  }
  const DLDataType type = tensor->dtype;
  const size_t bytes = std::max<size_t>(1, type.bits / 8);
  const std::vector<char> pattern = Pattern(type, bytes);
  char* data = static_cast<char*>(tensor->data) + tensor->byte_offset;
  for (size_t left = tvm::ffi::GetDataSize(*tensor); left > 0;) {
    const size_t size = std::min(left, pattern.size());
    memcpy(data, pattern.data(), size);
    data += size;
    left -= size;
  }
}

}  // namespace

void FillForMeasure(DLTensor* tensor) {
  if (tensor->device.device_type == kDLCPU) {
    FillHere(tensor);
    return;
  }
  using tvm::runtime::Tensor;
  const tvm::ffi::Shape shape(tensor->shape, tensor->shape + tensor->ndim);
  Tensor numbers = Tensor::Empty(shape, tensor->dtype, DLDevice{kDLCPU, 0});
  DLTensor* here = const_cast<DLTensor*>(numbers.operator->());
  FillHere(here);
  Tensor::CopyFromTo(here, tensor);
}

double Canary(int64_t milliseconds) {
  if (milliseconds < 1 || milliseconds > kMostMilliseconds) {
    TVM_FFI_THROW(ValueError) << "the canary takes 1 to " << kMostMilliseconds
                              << " milliseconds, not " << milliseconds;
  }
  const double end = MonotonicSeconds() + static_cast<double>(milliseconds) * 1e-3;
  double before = MonotonicSeconds(), least = 1e9;
  while (true) {
    Work();
    const double now = MonotonicSeconds();
    least = std::min(least, now - before);
    before = now;
    if (now + least > end) return least;
  }
}

void SetPassingBytes(int64_t bytes) {
  if (bytes < 0 || bytes > kMostPassingBytes) {
    TVM_FFI_THROW(ValueError) << "the board passes 0 to " << kMostPassingBytes
                              << " bytes through its caches, not " << bytes;
  }
  passing.assign(static_cast<size_t>(bytes), 1);  // written, so that each page is one of its own
}

void PassThroughCaches() {
  const auto read_share = [](int task, TVMParallelGroupEnv* env, void*) {
    const size_t share = passing.size() / static_cast<size_t>(env->num_task);
    const volatile char* data = passing.data() + static_cast<size_t>(task) * share;
    for (size_t i = 0; i < share; i += kCacheLine) static_cast<void>(data[i]);
    return 0;
  };
  TVMBackendParallelLaunch(read_share, nullptr, 0);
}

const std::vector<int>& SessionCpus() {
  static const std::vector<int> cpus = edge::ChooseCpus(0);
  return cpus;
}

int UseThreads(int64_t threads) {
  std::vector<int> cpus = SessionCpus();
  if (threads < 0 || threads > static_cast<int64_t>(cpus.size())) {
    TVM_FFI_THROW(ValueError) << "the board server may use " << cpus.size() << " CPUs, not "
                              << threads;
  }
  if (threads > 0) cpus.resize(static_cast<size_t>(threads));
  edge::PoolOptions options;
  options.threads = static_cast<int>(cpus.size());
  options.cpus = std::move(cpus);
  options.pinned = true;
  edge::StayOn(options.cpus);
  edge::Launcher::SetOwn(options);
  return options.threads;
}

}  // namespace board_server
