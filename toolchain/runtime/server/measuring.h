// What a client asks for before and after it measures a kernel.
#ifndef BOARD_SERVER_MEASURING_H_
#define BOARD_SERVER_MEASURING_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <vector>

namespace board_server {

// Fills a tensor, in the CPU's memory or on another device, with the same numbers every time: 1/128 to 1 for floats, which
// every type holds exactly and of which no two have a denormal product; 1 to 3 for integers; both
// truth values for bool. TVM's own is slow, and makes huge numbers of wide integers. Throws
// ValueError for other types.
void FillForMeasure(DLTensor* tensor);

// Seconds that a fixed amount of work takes on this thread: the least of as many repetitions as
// fit into so many milliseconds. The work is two chains of dependent operations in registers, so
// that it depends on the CPU's clock and on nothing else. Throws ValueError.
double Canary(int64_t milliseconds);

// Bytes that `PassThroughCaches` reads from now on; 0: none. Throws ValueError.
void SetPassingBytes(int64_t bytes);

// Reads that many bytes, each thread of the kernels its share of them: the caches then hold as
// little of a kernel's weights as they do in a network, where the weights of all other layers are
// read between two runs of it. For time evaluators, before each sample.
void PassThroughCaches();

// The CPUs that this process may use, the fastest first, as they were at the first call: UseThreads
// ties this thread to some of them.
const std::vector<int>& SessionCpus();

// Gives kernels so many of these CPUs, one thread on each, as `runner --threads` does; 0: all.
// Returns how many threads kernels have from now on; before the first call there is one for each
// CPU, or as many as $TVM_NUM_THREADS says. Throws ValueError.
int UseThreads(int64_t threads);

}  // namespace board_server

#endif  // BOARD_SERVER_MEASURING_H_
