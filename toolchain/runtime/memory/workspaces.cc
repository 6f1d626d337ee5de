// See workspaces.h.
#include "workspaces.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <new>

namespace edge {
namespace {

constexpr size_t kAlignment = 64, kPage = 4096;

thread_local Workspaces* used = nullptr;

}  // namespace

Workspaces::~Workspaces() {
  for (const Slot& slot : slots_) free(slot.data);
}

// Touches all of it: the first use by a thread must not wait for pages.
void Workspaces::Grow(Slot* slot, size_t size) {
  free(slot->data);
  *slot = {nullptr, 0, slot->shared, slot->taken, slot->grown};
  void* data = nullptr;
  if (posix_memalign(&data, kAlignment, size) != 0) throw std::bad_alloc();
  memset(data, 0, size);
  slot->data = static_cast<char*>(data);
  slot->size = size;
}

void* Workspaces::Take(size_t size, bool shared) {
  const size_t whole = std::max<size_t>((size + kPage - 1) / kPage, 1) * kPage;
  auto slot = std::find_if(slots_.begin(), slots_.end(), [](const Slot& each) { return !each.taken; });
  if (slot == slots_.end()) slot = slots_.insert(slot, Slot{});
  if (shared && slot->shared < whole) {
    slot->shared = whole;
    slot->grown = has_grown_ = true;
  }
  if (slot->size < whole) Grow(&*slot, whole);
  slot->taken = true;
  return slot->data;
}

void Workspaces::Give(void* memory) noexcept {
  for (Slot& slot : slots_) {
    if (slot.data == memory) slot.taken = false;
  }
}

void Workspaces::Report(Needs* needs) {
  if (needs->size() < slots_.size()) needs->resize(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].grown) (*needs)[i] = std::max((*needs)[i], slots_[i].shared);
    slots_[i].grown = false;
  }
  has_grown_ = false;
}

void Workspaces::Provide(const Needs& needs) {
  if (slots_.size() < needs.size()) slots_.resize(needs.size());
  for (size_t i = 0; i < needs.size(); ++i) {
    slots_[i].shared = std::max(slots_[i].shared, needs[i]);
    if (slots_[i].size < slots_[i].shared) Grow(&slots_[i], slots_[i].shared);
  }
}

Workspaces& Workspaces::Current() {
  thread_local Workspaces own;
  return used != nullptr ? *used : own;
}

void (*prepare_thread)() = nullptr;

UseWorkspaces::UseWorkspaces(Workspaces* workspaces) : before_(used) { used = workspaces; }

UseWorkspaces::~UseWorkspaces() { used = before_; }

bool& IsWithinTask() {
  thread_local bool within = false;
  return within;
}

}  // namespace edge
