// See shared_library.h.
#include "shared_library.h"

#include <dlfcn.h>

#include "fault.h"

namespace vta {

SharedLibrary::SharedLibrary(const std::string& name)
    : name_(name), handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* reason = dlerror();
  Fail(reason != nullptr ? reason : "cannot load " + name);
}

void* SharedLibrary::Address(const char* symbol) const {
  void* found = dlsym(handle_, symbol);
  if (found == nullptr) Fail(name_ + " has no function " + symbol);
  return found;
}

}  // namespace vta
