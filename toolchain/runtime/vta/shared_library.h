// Functions of libraries that a board may have.
#ifndef VTA_SHARED_LIBRARY_H_
#define VTA_SHARED_LIBRARY_H_

#include <string>

namespace vta {

// Never closed: such libraries keep state.
class SharedLibrary {
 public:
  // Throws Fault where it cannot be loaded.
  explicit SharedLibrary(const std::string& name);

  // Throws Fault where it lacks the function.
  template <typename Function>
  void Find(const char* symbol, Function* function) const {
    *function = reinterpret_cast<Function>(Address(symbol));
  }

 private:
  void* Address(const char* symbol) const;

  std::string name_;
  void* handle_;
};

}  // namespace vta

#endif  // VTA_SHARED_LIBRARY_H_
