// Spectrograms in mel bands and cepstral coefficients, by the conventions of librosa, torchaudio and Kaldi.
#include <algorithm>
#include <cmath>

#include "sounds.h"

namespace sounds {
namespace {

constexpr double kKaldiScale = 32768, kPreemphasis = 0.97, kLifter = 22;

// librosa's own scale, Slaney's: linear below 1000 Hz, logarithmic above.
constexpr double kLinearHz = 200.0 / 3, kBreakHz = 1000, kBreakMel = kBreakHz / kLinearHz;
constexpr double kLogStep = 0.06875177742094912;  // of a mel above, log(6.4) / 27

double MelOf(int32_t convention, double hertz) {
  switch (convention) {
    case kLibrosa:
      return hertz < kBreakHz ? hertz / kLinearHz : kBreakMel + std::log(hertz / kBreakHz) / kLogStep;
    case kTorchaudio:
      return 2595 * std::log10(1 + hertz / 700);
    default:
      return 1127 * std::log(1 + hertz / 700);
  }
}

double HertzOf(int32_t convention, double mel) {
  if (convention == kTorchaudio) return 700 * (std::pow(10.0, mel / 2595) - 1);
  return mel < kBreakMel ? mel * kLinearHz : kBreakHz * std::exp(kLogStep * (mel - kBreakMel));
}

// A number within a window that is mirrored at its ends, without them.
int64_t Mirrored(int64_t index, int64_t size) {
  if (index < 0) index = -index;
  return index < size ? index : 2 * (size - 1) - index;
}

}  // namespace

int64_t CountFrames(const Plan& plan) {
  if (plan.convention == kSamples) return plan.samples;
  const int64_t size = plan.convention == kKaldi ? plan.win : plan.fft;
  const int64_t padded = plan.padding == kNoPadding ? plan.samples : int64_t{plan.samples} + plan.fft / 2 * 2;
  return padded < size ? 0 : 1 + (padded - size) / plan.step;
}

Features::Features(const Plan& plan) : plan_(plan), fft_(plan.fft) {
  if (plan.convention == kSamples) return;
  frame_.resize(static_cast<size_t>(plan.fft));
  row_.resize(static_cast<size_t>(plan.mels));
  MakeWindow();
  MakeBands();
  MakeCosines();
}

void Features::MakeWindow() {
  window_.assign(static_cast<size_t>(plan_.fft), 0.0);
  const bool is_kaldi = plan_.convention == kKaldi;
  const int32_t offset = is_kaldi ? 0 : (plan_.fft - plan_.win) / 2, period = is_kaldi ? plan_.win - 1 : plan_.win;
  for (int32_t i = 0; i < plan_.win; ++i) {
    const double hann = period == 0 ? 1 : 0.5 - 0.5 * std::cos(2 * kPi * i / period);
    window_[static_cast<size_t>(offset + i)] = is_kaldi ? std::pow(hann, 0.85) : hann;  // Kaldi's window of Povey
  }
}

// Triangles between the middles of the neighbouring bands: over frequencies, or in Kaldi over mels.
void Features::MakeBands() {
  const bool is_kaldi = plan_.convention == kKaldi;
  const double low = MelOf(plan_.convention, plan_.low), high = MelOf(plan_.convention, plan_.high);
  // torchaudio takes the last bin for the highest frequency, also of an odd size.
  const double width = plan_.convention == kTorchaudio ? static_cast<double>(plan_.rate / 2) / (plan_.fft / 2)
                                                       : static_cast<double>(plan_.rate) / plan_.fft;
  const auto at = [&](int32_t band) {
    const double mel = low + (high - low) * band / (plan_.mels + 1);
    return is_kaldi ? mel : HertzOf(plan_.convention, mel);
  };
  const int32_t bins = plan_.fft / 2 + (is_kaldi ? 0 : 1);
  offsets_.push_back(0);
  for (int32_t band = 0; band < plan_.mels; ++band) {
    const double left = at(band), middle = at(band + 1), right = at(band + 2);
    const double area = plan_.convention == kLibrosa ? 2 / (right - left) : 1;
    int32_t first = 0;
    const size_t begin = weights_.size();
    for (int32_t bin = 0; bin < bins; ++bin) {
      const double place = is_kaldi ? MelOf(kKaldi, width * bin) : width * bin;
      const double weight = std::min((place - left) / (middle - left), (right - place) / (right - middle));
      if (weight <= 0 && weights_.size() > begin) break;
      if (weight <= 0) continue;
      if (weights_.size() == begin) first = bin;
      weights_.push_back(weight * area);
    }
    first_.push_back(first);
    offsets_.push_back(weights_.size());
  }
}

// The orthonormal cosine transform (DCT-II); Kaldi also weighs the coefficients.
void Features::MakeCosines() {
  for (int32_t k = 0; k < plan_.coefficients; ++k) {
    const double lifter = plan_.convention == kKaldi ? 1 + kLifter / 2 * std::sin(kPi * k / kLifter) : 1;
    const double scale = std::sqrt((k == 0 ? 1.0 : 2.0) / plan_.mels) * lifter;
    for (int32_t i = 0; i < plan_.mels; ++i) {
      cosines_.push_back(scale * std::cos(kPi / plan_.mels * (i + 0.5) * k));
    }
  }
}

// Cuts a frame, and multiplies it by the window.
void Features::Cut(const double* window, int64_t frame) {
  const int64_t start = frame * plan_.step - (plan_.padding == kNoPadding ? 0 : plan_.fft / 2);
  const int64_t size = plan_.convention == kKaldi ? plan_.win : plan_.fft;
  for (int64_t i = 0; i < size; ++i) {
    int64_t at = start + i;
    if (plan_.padding == kReflect) at = Mirrored(at, plan_.samples);
    frame_[static_cast<size_t>(i)] = at < 0 || at >= plan_.samples ? 0 : window[at];
  }
  std::fill(frame_.begin() + static_cast<std::ptrdiff_t>(size), frame_.end(), 0.0);
  if (plan_.convention == kKaldi) {
    double mean = 0;
    for (int64_t i = 0; i < size; ++i) mean += frame_[static_cast<size_t>(i)];
    mean /= static_cast<double>(size);
    for (int64_t i = 0; i < size; ++i) frame_[static_cast<size_t>(i)] -= mean;
    for (int64_t i = size - 1; i >= 0; --i) {
      frame_[static_cast<size_t>(i)] -= kPreemphasis * frame_[static_cast<size_t>(std::max<int64_t>(i - 1, 0))];
      frame_[static_cast<size_t>(i)] *= kKaldiScale;
    }
  }
  for (size_t i = 0; i < frame_.size(); ++i) frame_[i] *= window_[i];
}

// Takes the logarithm of all values, and limits what lies too far below the highest one.
void Features::Compress(double* values) const {
  if (plan_.logarithm == kNoLog) return;
  const size_t count = static_cast<size_t>(plan_.frames) * static_cast<size_t>(plan_.mels);
  for (size_t i = 0; i < count; ++i) {
    const double value = std::max(values[i] + plan_.offset, plan_.floor);
    values[i] = plan_.logarithm == kNatural ? std::log(value) : std::log10(value);
    if (plan_.logarithm == kDecibel) values[i] *= 10;
  }
  if (plan_.top <= 0) return;
  const double least = *std::max_element(values, values + count) - plan_.top;
  for (size_t i = 0; i < count; ++i) values[i] = std::max(values[i], least);
}

void Features::Run(const double* window, double* values) {
  const size_t mels = static_cast<size_t>(plan_.mels), frames = static_cast<size_t>(plan_.frames);
  for (size_t frame = 0; frame < frames; ++frame) {
    Cut(window, static_cast<int64_t>(frame));
    fft_.Run(plan_.power, frame_.data());
    for (size_t band = 0; band < mels; ++band) {
      const double* bins = frame_.data() + first_[band];
      double sum = 0;
      for (size_t i = offsets_[band]; i < offsets_[band + 1]; ++i) sum += weights_[i] * *bins++;
      values[frame * mels + band] = sum;
    }
  }
  Compress(values);
  const size_t coefficients = static_cast<size_t>(plan_.coefficients);
  for (size_t frame = 0; frame < frames && coefficients > 0; ++frame) {
    std::copy_n(values + frame * mels, mels, row_.begin());
    for (size_t k = 0; k < coefficients; ++k) {
      double sum = 0;
      for (size_t i = 0; i < mels; ++i) sum += cosines_[k * mels + i] * row_[i];
      values[frame * coefficients + k] = sum;  // not beyond what was read: there are at most as many as bands
    }
  }
}

}  // namespace sounds
