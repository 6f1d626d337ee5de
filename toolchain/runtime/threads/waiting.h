// How threads wait for a number that another one changes. Linux only: futexes.
#ifndef THREADS_WAITING_H_
#define THREADS_WAITING_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

#include "neighbours.h"

namespace edge {

// How long a thread looks for what it waits for while other processes are busy: about what it takes
// to wake a thread that sleeps.
constexpr std::chrono::microseconds kLeastSpin{50};

inline void Relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__ARM_ARCH_7A__)
  asm volatile("yield");
#elif defined(__riscv)
  asm volatile(".4byte 0x0100000f");  // PAUSE, a hint that processors without Zihintpause ignore
#endif
}

template <typename Holds>
bool SpinUntil(Holds holds, std::chrono::steady_clock::time_point end) {
  constexpr int kLooksBetweenClocks = 64;
  while (true) {
    for (int look = 0; look < kLooksBetweenClocks; ++look) {
      if (holds()) return true;
      Relax();
    }
    if (std::chrono::steady_clock::now() >= end) return holds();
  }
}

// Where other processes want the CPUs, whoever spins uses up the time that it would need as soon as
// there is work; and the CPU of one that sleeps is free for a thread of ours that waits for one.
template <typename Holds>
bool Spin(Holds holds, std::chrono::microseconds time, const Neighbours& neighbours) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  if (SpinUntil(holds, start + std::min(kLeastSpin, time))) return true;
  return !neighbours.AreBusy(Clock::now()) && SpinUntil(holds, start + time);
}

inline void SleepWhile(std::atomic<uint32_t>& word, uint32_t value) {
  static_assert(sizeof(word) == sizeof(uint32_t), "a futex is a plain word");
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

inline void WakeSleepers(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace edge

#endif  // THREADS_WAITING_H_
