// Memory for one message of the RPC protocol, given back all at once. Written from how TVM's
// runtime uses it.
#ifndef TVM_SUPPORT_ARENA_H_
#define TVM_SUPPORT_ARENA_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace tvm {
namespace support {

class Arena {
 public:
  // Uninitialised memory for `count` values of a trivial type.
  template <typename T>
  T* allocate_(int count = 1) {
    // operator new[] for char aligns for every basic type.
    blocks_.emplace_back(new char[sizeof(T) * static_cast<size_t>(count)]);
    return reinterpret_cast<T*>(blocks_.back().get());
  }

  void RecycleAll() { blocks_.clear(); }

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
};

}  // namespace support
}  // namespace tvm

#endif  // TVM_SUPPORT_ARENA_H_
