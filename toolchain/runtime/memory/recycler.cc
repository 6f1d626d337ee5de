// See recycler.h. What C++ allocates in these programs goes through here, and TVM's objects do: see
// ../shims/ffi/tvm/ffi/memory.h. Sanitizers watch allocations themselves.
#include "recycler.h"

#include <malloc.h>

#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EDGE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define EDGE_SANITIZED 1
#endif
#endif

namespace edge {
namespace {

constexpr size_t kLargest = 1 << 20;  // what is larger is rare, and costs more than its allocation
constexpr size_t kUsual = 16;         // steps
constexpr size_t kSlack = 4;          // other allocators than the C library's round sizes up further

thread_local Recycler* current = nullptr;

}  // namespace

Recycler::~Recycler() {
  const auto end = [](Block* block) {
    while (block != nullptr) {
      Block* const next = block->next;
      free(block);
      block = next;
    }
  };
  for (Block* block : small_) end(block);
  end(large_);
}

void* Recycler::Take(size_t size) noexcept {
  const size_t steps = size <= kStep ? 1 : (size + kStep - 1) / kStep;
  for (size_t at = steps; at < kSmallClasses && at <= steps + kSlack; ++at) {
    if (Block* const block = small_[at]) {
      small_[at] = block->next;
      return block;
    }
  }
  if (steps < kSmallClasses) ++missing_[steps];
  if (steps + kSlack < kSmallClasses) return nullptr;
  for (Block** place = &large_; *place != nullptr; place = &(*place)->next) {
    Block* const block = *place;
    const size_t has = malloc_usable_size(block);
    if (has < size || has / 2 > size) continue;
    *place = block->next;
    return block;
  }
  return nullptr;
}

bool Recycler::Give(void* block) noexcept {
  const size_t size = malloc_usable_size(block), steps = size / kStep;
  if (steps == 0 || size > kLargest) return false;
  Block** const list = steps < kSmallClasses ? &small_[steps] : &large_;
  *list = new (block) Block{*list};
  return true;
}

void Recycler::Double() noexcept {
  for (size_t steps = 1; steps < kSmallClasses; ++steps) {
    if (steps <= kUsual) ++missing_[steps];
    for (; missing_[steps] > 0; --missing_[steps]) {
      void* const block = malloc(steps * kStep);
      if (block != nullptr && !Give(block)) free(block);
    }
  }
}

Recycling::Recycling(Recycler* recycler) noexcept : before_(current) { current = recycler; }

Recycling::~Recycling() { current = before_; }

#ifdef EDGE_SANITIZED

void* TakeBlock(size_t size) noexcept { return malloc(size); }
void GiveBlock(void* block) noexcept { free(block); }

#else

void* TakeBlock(size_t size) noexcept {
  void* const block = current != nullptr ? current->Take(size) : nullptr;
  return block != nullptr ? block : malloc(size);
}

void GiveBlock(void* block) noexcept {
  if (current == nullptr || block == nullptr || !current->Give(block)) free(block);
}

#endif

}  // namespace edge

#ifndef EDGE_SANITIZED

// The other forms of both lead to these.
void* operator new(size_t size) {
  if (void* const block = edge::TakeBlock(size == 0 ? 1 : size)) return block;
  throw std::bad_alloc();
}

void operator delete(void* block) noexcept { edge::GiveBlock(block); }
void operator delete(void* block, size_t) noexcept { edge::GiveBlock(block); }

#endif
