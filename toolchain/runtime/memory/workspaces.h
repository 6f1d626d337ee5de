// The memory that kernels take for a moment, in place of TVM's pools for each thread. A thread keeps
// it, and threads of one pool have it alike: who computes which part of a kernel is chance, but how
// much memory there is then is not.
#ifndef MEMORY_WORKSPACES_H_
#define MEMORY_WORKSPACES_H_

#include <cstddef>
#include <vector>

namespace edge {

// One thread's. The n-th of those that a kernel has at the same time is as large as the largest one so far.
class alignas(64) Workspaces {
 public:
  Workspaces() = default;
  ~Workspaces();
  Workspaces(const Workspaces&) = delete;
  Workspaces& operator=(const Workspaces&) = delete;

  // Throws std::bad_alloc. With `shared` the other threads of its pool need one too.
  void* Take(size_t size, bool shared);
  void Give(void* memory) noexcept;

  // Bytes of the n-th of those that a kernel has at the same time.
  using Needs = std::vector<size_t>;

  // Whether tasks have asked for more than before since the last report.
  bool HasGrown() const { return has_grown_; }
  void Report(Needs* needs);

  // Between two jobs: has at least what tasks of another thread have asked for. Throws std::bad_alloc.
  void Provide(const Needs& needs);

  // This thread's: those of the innermost UseWorkspaces, or its own.
  static Workspaces& Current();

 private:
  struct Slot {
    char* data = nullptr;
    size_t size = 0, shared = 0;
    bool taken = false, grown = false;
  };

  static void Grow(Slot* slot, size_t size);

  std::vector<Slot> slots_;
  bool has_grown_ = false;
};

class UseWorkspaces {
 public:
  explicit UseWorkspaces(Workspaces* workspaces);
  ~UseWorkspaces();
  UseWorkspaces(const UseWorkspaces&) = delete;
  UseWorkspaces& operator=(const UseWorkspaces&) = delete;

 private:
  Workspaces* before_;
};

// Has a thread take what it takes once, at its first use of this memory; null where nothing is.
extern void (*prepare_thread)();

// Whether this thread runs a task of a pool, be it the one that launched it.
bool& IsWithinTask();

}  // namespace edge

#endif  // MEMORY_WORKSPACES_H_
