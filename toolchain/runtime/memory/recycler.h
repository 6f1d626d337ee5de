// Keeps the small blocks of memory that a model's run gives back for its next run, which then asks the
// system for none: TVM's virtual machine makes the same objects anew in each run.
#ifndef MEMORY_RECYCLER_H_
#define MEMORY_RECYCLER_H_

#include <cstddef>

namespace edge {

// Blocks are those of malloc, so whoever gets one may free it, and may give one from elsewhere.
class Recycler {
 public:
  Recycler() = default;
  ~Recycler();
  Recycler(const Recycler&) = delete;
  Recycler& operator=(const Recycler&) = delete;

  // A block of at least that size, or null.
  void* Take(size_t size) noexcept;

  // Whether the block is kept.
  bool Give(void* block) noexcept;

  // Allocates again what it did not have so far, and one of each usual size: what a run leaves behind
  // is there while the next one works.
  void Double() noexcept;

 private:
  static constexpr size_t kStep = 16, kSmallClasses = 65;

  struct Block {
    Block* next;
  };

  Block* small_[kSmallClasses] = {};  // of at least that many steps
  Block* large_ = nullptr;
  size_t missing_[kSmallClasses] = {};
};

// Has what this thread allocates and frees in a scope come from a recycler, and go there.
class Recycling {
 public:
  explicit Recycling(Recycler* recycler) noexcept;
  ~Recycling();
  Recycling(const Recycling&) = delete;
  Recycling& operator=(const Recycling&) = delete;

 private:
  Recycler* before_;
};

}  // namespace edge

#endif  // MEMORY_RECYCLER_H_
