// TVM-FFI's header of that name, whose objects take their memory by malloc, with edge::TakeBlock and
// edge::GiveBlock in its place: the objects of a run are made from those of the last one.
#ifndef SHIMS_FFI_TVM_FFI_MEMORY_H_
#define SHIMS_FFI_TVM_FFI_MEMORY_H_

#include <cstddef>
#include <cstdlib>

namespace edge {

void* TakeBlock(size_t size) noexcept;
void GiveBlock(void* block) noexcept;

}  // namespace edge

// The header says std::malloc.
namespace std {
using edge::GiveBlock;
using edge::TakeBlock;
}  // namespace std

#define malloc TakeBlock
#define free GiveBlock
#include_next <tvm/ffi/memory.h>
#undef malloc
#undef free

#endif  // SHIMS_FFI_TVM_FFI_MEMORY_H_
