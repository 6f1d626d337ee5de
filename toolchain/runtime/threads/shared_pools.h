// The pools that the models of a process have in common.
#ifndef THREADS_SHARED_POOLS_H_
#define THREADS_SHARED_POOLS_H_

#include <cstdint>
#include <memory>

#include "pool.h"

namespace edge {

// A pool with these options that is in use, or a new one. It ends with its last user. What a thread
// inherits from the one that starts it belongs to the options, too: its scheduling, and its CPUs where
// the options name none. Throws as ThreadPool does.
std::shared_ptr<ThreadPool> SharedPool(const PoolOptions& options);

// How many forks lie between this process and the first one that had a pool.
uint32_t CountForks();

}  // namespace edge

#endif  // THREADS_SHARED_POOLS_H_
