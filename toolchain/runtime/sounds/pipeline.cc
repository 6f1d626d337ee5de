// From a sound to the model's input, window by window, and from its outputs to objects.
#include <algorithm>
#include <cmath>

#include "sounds.h"

namespace sounds {
namespace {

constexpr double kLeastVariance = 1e-7;  // added to it, as the feature extractors of wav2vec2 do

bool IsWithin(int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; }

bool HasSmallFactors(int32_t size) {
  for (const int32_t factor : {2, 3, 5, 7}) {
    while (size % factor == 0) size /= factor;
  }
  return size == 1;
}

bool CheckFeatures(const Plan& plan) {
  if (plan.convention == kSamples) {
    return plan.frames == plan.samples && plan.mels == 1 && plan.coefficients == 0 && plan.fft == 0;
  }
  const bool numbers = IsWithin(plan.fft, 2, kLargestFft) && HasSmallFactors(plan.fft) &&
                       IsWithin(plan.win, 2, plan.fft) && IsWithin(plan.step, 1, kLargestWindow) &&
                       IsWithin(plan.mels, 1, kMostBands) && IsWithin(plan.coefficients, 0, plan.mels) &&
                       IsWithin(plan.frames, 1, kMostFrames) && IsWithin(plan.padding, kZeros, kNoPadding) &&
                       IsWithin(plan.power, 1, 2) && IsWithin(plan.logarithm, kNoLog, kDecibel);
  const bool reals = plan.low >= 0 && plan.low < plan.high && plan.high <= kHighestRate && plan.floor > 0 &&
                     plan.floor <= 1 && plan.offset >= 0 && plan.offset <= 1 && plan.top >= 0 && plan.top <= 1000;
  if (!numbers || !reals) return false;
  if (plan.convention == kKaldi && plan.padding != kNoPadding) return false;
  if (plan.padding == kReflect && plan.samples <= plan.fft / 2) return false;
  return plan.frames <= CountFrames(plan);
}

}  // namespace

bool CheckPlan(const Plan& plan, Reason* reason) {
  bool ok = IsWithin(plan.rate, 1, kHighestRate) && IsWithin(plan.samples, 1, kLargestWindow) &&
            IsWithin(plan.hop, 0, kLargestWindow) && IsWithin(plan.context, 0, plan.hop > 0 ? plan.samples - 1 : 0) &&
            IsWithin(plan.convention, kSamples, kKaldi) &&
            IsWithin(plan.element, steps::kFloat32, steps::kInt8) &&
            IsWithin(plan.operations, 0, kMostOperations) && IsWithin(plan.head, kNoHead, kLabels) &&
            IsWithin(plan.most, 0, kMostScores) && IsWithin(plan.classes, 0, kMostScores) &&
            IsWithin(plan.candidates, 0, kMostScores) &&
            IsWithin(int64_t{plan.classes} * plan.candidates, 0, kMostScores);
  ok = ok && CheckFeatures(plan);
  if (plan.head == kClasses) ok = ok && IsWithin(plan.most, 1, kMostObjects) && plan.classes > 0 && plan.candidates == 1;
  if (plan.head == kLabels) {
    ok = ok && IsWithin(plan.candidates, 1, kMostRows) && plan.most == plan.candidates && plan.hop == 0 &&
         IsWithin(plan.blank, 0, plan.classes - 1) && IsWithin(plan.beam, 0, steps::kWidestBeam) &&
         int64_t{plan.beam} * plan.candidates <= steps::kMostBeamRows;
  }
  for (int32_t i = 0; ok && i < plan.operations; ++i) {
    const Operation& operation = plan.operation[i];
    ok = IsWithin(operation.kind, steps::kMultiply, kOfBands) && std::isfinite(operation.value) &&
         (operation.kind != steps::kDivide || operation.value != 0);
  }
  return ok || reason->Is("the release's pipeline has a number that is out of range");
}

Pipeline::Pipeline(const Plan& plan)
    : plan_(plan),
      bands_(plan.coefficients > 0 ? plan.coefficients : plan.mels),
      features_(plan),
      search_(Table(), plan.head == kLabels ? plan.beam : 0, plan.softmax != 0) {
  window_.resize(static_cast<size_t>(plan.samples));
  if (plan.convention != kSamples) {
    values_.resize(static_cast<size_t>(plan.frames) * static_cast<size_t>(plan.mels));
  }
  objects_.reserve(static_cast<size_t>(plan.most));
}

size_t Pipeline::input_bytes() const {
  return static_cast<size_t>(plan_.frames) * static_cast<size_t>(bands_) * steps::SizeOf(plan_.element);
}

// Whether the rate is the model's, or becomes it.
bool Pipeline::Admit(const Samples& samples, Reason* reason) {
  is_resampled_ = samples.rate != plan_.rate;
  if (is_resampled_ && !plan_.resample) {
    return reason->Is("the sound has %d Hz, and the model takes %d Hz: record it so, or build the release with "
                      "wav:rate=%d,resample=torchaudio", samples.rate, plan_.rate, plan_.rate);
  }
  return !is_resampled_ || resampler_.Prepare(samples.rate, plan_.rate, plan_.samples, reason);
}

// Windows of so many samples at the plan's rate: the end of the last one is not before theirs.
int64_t Pipeline::CountWindows(int64_t total) const {
  const int64_t more = std::max<int64_t>(total - (plan_.samples - plan_.context), 0);
  return 1 + (more > 0 ? (more + plan_.hop - 1) / plan_.hop : 0);
}

bool Pipeline::Open(const Sound& sound, int32_t* windows, Reason* reason) {
  EndStream();
  total_ = 0;
  Samples samples;
  if (!sounds::Open(sound, &samples, reason) || !Admit(samples, reason)) return false;
  const int64_t total = is_resampled_ ? resampler_.Count(samples.count) : samples.count;
  if (total > plan_.samples && plan_.hop == 0) {
    return reason->Is("the sound has %lld samples, and the model takes %d: shorten it, or build the release with "
                      "window:hop=%d", static_cast<long long>(total), plan_.samples, plan_.samples);
  }
  const int64_t count = CountWindows(total), most = kMostWindows / std::max(plan_.hop > 0 ? plan_.most : 1, 1);
  if (count > most) {
    return reason->Is("the sound has %lld windows; at most %lld are possible", static_cast<long long>(count),
                      static_cast<long long>(most));
  }
  samples_ = samples;
  total_ = total;
  *windows = static_cast<int32_t>(count);
  return true;
}

bool Pipeline::Fill(int64_t window) {
  const int64_t first = FirstOf(window);
  if (!is_resampled_) return Decode(samples_, first, plan_.samples, window_.data());
  const int64_t before = std::max<int64_t>(-first, 0);  // zeros, as those after the sound
  const int64_t count = std::clamp<int64_t>(total_ - first, before, plan_.samples) - before;
  std::fill(window_.begin(), window_.end(), 0.0);
  return count == 0 || resampler_.Run(samples_, first + before, count, window_.data() + before);
}

void Pipeline::Normalize(bool each_band, double* values) const {
  const size_t bands = static_cast<size_t>(bands_), count = bands * static_cast<size_t>(plan_.frames);
  const size_t groups = each_band ? bands : 1, members = count / groups;
  for (size_t group = 0; group < groups; ++group) {
    double sum = 0, squares = 0;
    for (size_t i = group; i < count; i += groups) sum += values[i];
    const double mean = sum / static_cast<double>(members);
    for (size_t i = group; i < count; i += groups) squares += (values[i] - mean) * (values[i] - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(members) + kLeastVariance);
    for (size_t i = group; i < count; i += groups) values[i] = (values[i] - mean) / deviation;
  }
}

// Makes the features of the window, and applies the operations.
void Pipeline::Compute() {
  const bool is_raw = plan_.convention == kSamples;
  if (!is_raw) features_.Run(window_.data(), values_.data());
  double* values = is_raw ? window_.data() : values_.data();
  const size_t count = static_cast<size_t>(plan_.frames) * static_cast<size_t>(bands_);
  for (int32_t i = 0; i < plan_.operations; ++i) {
    const Operation& operation = plan_.operation[i];
    const double number = operation.value;
    switch (operation.kind) {
      case steps::kMultiply:
        std::transform(values, values + count, values, [number](double value) { return value * number; });
        break;
      case steps::kSubtract:
        std::transform(values, values + count, values, [number](double value) { return value - number; });
        break;
      case steps::kDivide:
        std::transform(values, values + count, values, [number](double value) { return value / number; });
        break;
      default:
        Normalize(operation.kind == kOfBands, values);
    }
  }
}

bool Pipeline::Prepare(int64_t window, void* input, size_t bytes, Reason* reason) {
  if (total_ == 0) return reason->Is("no sound is open");
  if (input == nullptr || bytes != input_bytes()) {
    return reason->Is("the model's input has %zu bytes, and the pipeline makes %zu", bytes, input_bytes());
  }
  if (!Fill(window)) return reason->Is("the sound has a sample that is not a finite number");
  Compute();
  const double* values = plan_.convention == kSamples ? window_.data() : values_.data();
  const size_t bands = static_cast<size_t>(bands_), frames = static_cast<size_t>(plan_.frames);
  const auto is_finite = [](double value) { return std::isfinite(static_cast<float>(value)); };
  if (!std::all_of(values, values + bands * frames, is_finite)) {
    return reason->Is("the sound is too loud for its features: they are not finite numbers");
  }
  for (size_t i = 0; i < bands * frames; ++i) {
    const size_t frame = i / bands, band = i % bands, to = plan_.bands_first ? band * frames + frame : i;
    const uint32_t bits = steps::ElementOf(plan_.element, static_cast<float>(values[i]));
    switch (steps::SizeOf(plan_.element)) {
      case 4:
        static_cast<uint32_t*>(input)[to] = bits;
        break;
      case 2:
        static_cast<uint16_t*>(input)[to] = static_cast<uint16_t>(bits);
        break;
      default:
        static_cast<uint8_t*>(input)[to] = static_cast<uint8_t>(bits);
    }
  }
  return true;
}

bool Pipeline::Find(int64_t window, const float* output, size_t count, Reason* reason) {
  if (window == 0) objects_.clear();
  return Append(window, output, count, reason);
}

steps::LabelRows Pipeline::Table() const {
  const double whole = static_cast<double>(plan_.samples) / plan_.rate;
  return {plan_.candidates, plan_.classes, plan_.blank, plan_.candidates > 0 ? whole / plan_.candidates : 0};
}

bool Pipeline::Append(int64_t window, const float* output, size_t count, Reason* reason) {
  if (plan_.head == kNoHead) return true;
  const size_t expected = static_cast<size_t>(plan_.classes) * static_cast<size_t>(plan_.candidates);
  if (output == nullptr || count != expected) {
    return reason->Is("the model's output has %zu numbers, and the pipeline reads %zu", count, expected);
  }
  if (plan_.head == kLabels && plan_.beam > 0) return search_.Read(output, &objects_, reason);
  if (plan_.head == kLabels) {
    steps::ReadLabels(Table(), output, &objects_);
    return true;
  }
  const double whole = static_cast<double>(plan_.samples - plan_.context) / plan_.rate;
  const size_t first = objects_.size();
  constexpr float kLowest = -3.4028234663852886e38f;  // each finite score counts
  steps::RankClasses({plan_.classes, plan_.softmax, plan_.most, kLowest}, output, &objects_);
  const double begin = static_cast<double>(window) * plan_.hop / plan_.rate;
  for (size_t i = first; i < objects_.size(); ++i) {
    objects_[i].left = static_cast<float>(begin);
    objects_[i].right = static_cast<float>(begin + whole);
  }
  return true;
}

}  // namespace sounds
