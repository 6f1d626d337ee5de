// The discrete Fourier transform, by the factors of its size.
#include <cmath>

#include "sounds.h"

namespace sounds {
namespace {

constexpr int32_t kFactors[] = {4, 2, 3, 5, 7};

Complex Times(const Complex& one, const Complex& other) {
  return {one.re * other.re - one.im * other.im, one.re * other.im + one.im * other.re};
}

}  // namespace

Fft::Fft(int32_t size) : size_(size) {
  for (int32_t left = size; left > 1;) {
    for (const int32_t factor : kFactors) {
      if (left % factor != 0) continue;
      factors_.push_back(factor);
      left /= factor;
      break;
    }
  }
  for (int32_t i = 0; i < size; ++i) {
    const double angle = -2 * kPi * i / size;
    twiddles_.push_back({std::cos(angle), std::sin(angle)});
  }
  result_.resize(static_cast<size_t>(size));
}

void Fft::Run(int32_t power, double* values) {
  Transform(values, 1, size_, 0, result_.data());
  for (int32_t i = 0; i <= size_ / 2; ++i) {
    const Complex& value = result_[static_cast<size_t>(i)];
    const double square = value.re * value.re + value.im * value.im;
    values[i] = power == 1 ? std::sqrt(square) : square;
  }
}

// Of every `stride`th number, `size` of them: those of each remainder by the factor, which are then joined.
void Fft::Transform(const double* from, int32_t stride, int32_t size, size_t factor, Complex* to) {
  if (size == 1) {
    *to = {*from, 0};
    return;
  }
  const int32_t parts = factors_[factor], part = size / parts;
  for (int32_t i = 0; i < parts; ++i) Transform(from + i * stride, stride * parts, part, factor + 1, to + i * part);
  const auto twiddle = [&](int64_t step) { return twiddles_[static_cast<size_t>(step * stride % size_)]; };
  for (int32_t k = 0; k < part; ++k) {
    Complex terms[kLargestFactor];
    for (int32_t i = 0; i < parts; ++i) terms[i] = Times(to[i * part + k], twiddle(int64_t{i} * k));
    for (int32_t j = 0; j < parts; ++j) {
      Complex sum = terms[0];
      for (int32_t i = 1; i < parts; ++i) {
        const Complex term = Times(terms[i], twiddle(int64_t{i} * j * part));
        sum.re += term.re;
        sum.im += term.im;
      }
      to[j * part + k] = sum;
    }
  }
}

}  // namespace sounds
