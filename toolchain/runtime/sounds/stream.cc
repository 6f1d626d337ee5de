// The windows of a sound that arrives in parts of any size.
#include <algorithm>
#include <cstring>
#include <limits>

#include "sounds.h"

namespace sounds {

bool Pipeline::Continue(const Sound& sound, Reason* reason) {
  if (plan_.hop == 0) return reason->Is("the release takes sounds of one window: build it with window:hop=N");
  if (sound.format == kWav) return reason->Is("a stream has raw samples, not a WAV file");
  Samples samples = {};
  const bool is_begun = arrived_.rate != 0;
  if (sound.bytes == 0) {  // of a microphone that has nothing yet
    arrived_.count = 0;
    return true;
  }
  if (!sounds::Open(sound, &samples, reason)) return false;
  if (is_begun && (samples.rate != arrived_.rate || samples.channels != arrived_.channels)) {
    return reason->Is("the stream has %d Hz and %d channels, and then %d Hz and %d", arrived_.rate, arrived_.channels,
                      samples.rate, samples.channels);
  }
  if (!IsFinite(samples)) return reason->Is("the sound has a sample that is not a finite number");
  if (!is_begun) {
    if (!Admit(samples, reason)) return false;
    recent_.resize(is_resampled_ ? resampler_.most() : static_cast<size_t>(plan_.samples));
  }
  arrived_ = samples;
  return true;
}

// The samples at the stream's own rate that a window is made of; there are none before the first one.
int64_t Pipeline::SourceBegin(int64_t window) const {
  const int64_t first = std::max<int64_t>(FirstOf(window), 0);
  return std::max<int64_t>(is_resampled_ ? resampler_.Begin(first) : first, 0);
}

int64_t Pipeline::SourceEnd(int64_t window) const {
  const int64_t last = FirstOf(window) + plan_.samples - 1;
  return is_resampled_ ? resampler_.End(last) : last + 1;
}

// Forgets the samples before `begin`, and takes in those that have arrived up to `end`.
void Pipeline::Take(int64_t begin, int64_t end) {
  const int64_t forgotten = std::clamp<int64_t>(begin - recent_start_, 0, recent_count_);
  recent_count_ -= forgotten;
  if (forgotten > 0 && recent_count_ > 0) {
    memmove(recent_.data(), recent_.data() + forgotten, static_cast<size_t>(recent_count_) * sizeof(double));
  }
  recent_start_ += forgotten;
  const size_t block = static_cast<size_t>(arrived_.channels) * (arrived_.encoding == kSigned16 ? 2 : 4);
  const auto drop = [this, block](int64_t count) {
    arrived_.data += static_cast<size_t>(count) * block;
    arrived_.count -= count;
  };
  if (recent_count_ == 0 && recent_start_ < begin) {  // between two windows
    const int64_t skipped = std::min(begin - recent_start_, arrived_.count);
    drop(skipped);
    recent_start_ += skipped;
  }
  const int64_t count = std::clamp<int64_t>(end - recent_start_ - recent_count_, 0, arrived_.count);
  if (count == 0) return;
  Decode(arrived_, 0, count, recent_.data() + recent_count_);
  drop(count);
  recent_count_ += count;
}

bool Pipeline::NextWindow(int64_t* window) {
  if (arrived_.rate == 0) return false;
  const int64_t end = SourceEnd(next_window_);
  Take(SourceBegin(next_window_), end);
  if (recent_start_ + recent_count_ < end) return false;
  samples_ = {kFloat64Bits, arrived_.rate, 1, reinterpret_cast<const uint8_t*>(recent_.data()), recent_count_,
              recent_start_};
  total_ = std::numeric_limits<int64_t>::max() / 2;  // more may follow
  *window = next_window_++;
  return true;
}

bool Pipeline::LastWindow(int64_t* window) {
  const int64_t count = recent_start_ + recent_count_;
  const int64_t total = is_resampled_ ? resampler_.Count(count) : count;
  if (arrived_.rate == 0 || next_window_ >= CountWindows(total)) {
    EndStream();
    return false;
  }
  const int64_t begin = SourceBegin(next_window_);
  arrived_.count = 0;
  if (begin < count) Take(begin, count);
  samples_ = {kFloat64Bits, arrived_.rate, 1, reinterpret_cast<const uint8_t*>(recent_.data()), recent_count_,
              recent_start_};
  total_ = total;
  *window = next_window_++;
  return true;
}

void Pipeline::EndStream() {
  arrived_ = {};
  recent_start_ = recent_count_ = next_window_ = 0;
}

bool Pipeline::FindNext(int64_t window, const float* output, size_t count, Reason* reason) {
  objects_.clear();
  return Append(window, output, count, reason);
}

}  // namespace sounds
