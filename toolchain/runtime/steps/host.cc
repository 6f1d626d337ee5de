// What the modules of pictures and sounds need as a library of the host, which computes the reference of a
// release with them: see toolchain/native/steps.py. It is linked without a C++ library, which takes minutes to
// build once.
#include "host.h"

#include <cstddef>
#include <cstdlib>
#include <new>

void* operator new(size_t size) {
  void* memory = malloc(size);
  if (memory == nullptr) abort();
  return memory;
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }

#ifdef _LIBCPP_VERSION
// What libc++'s templates call instead of an exception.
_LIBCPP_BEGIN_NAMESPACE_STD
[[noreturn]] void __libcpp_verbose_abort(const char*, ...) noexcept { abort(); }
_LIBCPP_END_NAMESPACE_STD
#endif
