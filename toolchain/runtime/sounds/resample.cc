// Another sample rate, by a band-limited interpolation.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "sounds.h"

namespace sounds {
namespace {

// torchaudio's defaults: lowpass_filter_width, rolloff, and the window sinc_interp_hann.
constexpr double kFilterWidth = 6, kRolloff = 0.99;
constexpr int64_t kMostWeights = 1 << 21;
constexpr int64_t kMostSource = 1 << 24;  // samples of which a window is made

}  // namespace

bool Resampler::Prepare(int32_t from, int32_t to, int32_t samples, Reason* reason) {
  if (from == from_ && to == to_) return true;
  from_ = to_ = 0;
  const int32_t divisor = std::gcd(from, to);
  old_ = from / divisor;
  new_ = to / divisor;
  const double base = static_cast<double>(std::min(old_, new_)) * kRolloff;
  const double reach = kFilterWidth * static_cast<double>(old_) / base;  // in samples of the source
  taps_ = static_cast<int64_t>(std::floor(2 * reach)) + 2;
  const int64_t source = (static_cast<int64_t>(samples) + new_) * old_ / new_ + old_ + 2 * taps_;
  if (new_ > kMostWeights / taps_ || source > kMostSource) {
    return reason->Is("the sound of %d Hz cannot be resampled to %d Hz in bounded memory", from, to);
  }
  first_.resize(static_cast<size_t>(new_));
  weights_.resize(static_cast<size_t>(new_ * taps_));
  source_.resize(static_cast<size_t>(source));
  double* weight = weights_.data();
  for (int64_t phase = 0; phase < new_; ++phase) {
    const double centre = static_cast<double>(phase) * static_cast<double>(old_) / static_cast<double>(new_);
    const int64_t start = static_cast<int64_t>(std::ceil(centre - reach));
    first_[static_cast<size_t>(phase)] = start;
    for (int64_t tap = 0; tap < taps_; ++tap, ++weight) {
      const double place = static_cast<double>(start + tap) / static_cast<double>(old_) -
                           static_cast<double>(phase) / static_cast<double>(new_);
      const double t = std::clamp(place * base, -kFilterWidth, kFilterWidth);
      const double cosine = std::cos(t * kPi / kFilterWidth / 2);
      const double sinc = t == 0 ? 1 : std::sin(t * kPi) / (t * kPi);
      *weight = sinc * cosine * cosine * base / static_cast<double>(old_);
    }
  }
  from_ = from;
  to_ = to;
  return true;
}

bool Resampler::Run(const Samples& samples, int64_t first, int64_t count, double* to) {
  const int64_t last = first + count - 1;
  const int64_t begin = Begin(first);
  if (!Decode(samples, begin, End(last) - begin, source_.data())) return false;
  for (int64_t i = first; i <= last; ++i) {
    const double* from = source_.data() + (Begin(i) - begin);
    const double* weights = weights_.data() + i % new_ * taps_;
    *to++ = std::inner_product(from, from + taps_, weights, 0.0);
  }
  return true;
}

}  // namespace sounds
