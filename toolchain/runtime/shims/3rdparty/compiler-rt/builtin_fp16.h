// Conversions between half precision and wider floats, by the names and template parameters under
// which TVM's runtime calls them: the source's type, its bits as an integer and the width of its
// fraction, then the same of the result. Written afresh from IEEE 754.
#ifndef TVM_COMPILER_RT_BUILTIN_FP16_H_
#define TVM_COMPILER_RT_BUILTIN_FP16_H_

#include <cstdint>
#include <cstring>

// To a narrower format, to nearest, ties to even; too large becomes infinity.
template <typename Source, typename SourceBits, int kSourceFraction, typename Result,
          typename ResultBits, int kResultFraction>
inline Result __truncXfYf2__(Source value) {
  constexpr int kSourceExponent = 8 * sizeof(SourceBits) - 1 - kSourceFraction;
  constexpr int kResultExponent = 8 * sizeof(ResultBits) - 1 - kResultFraction;
  constexpr int kSourceMost = (1 << kSourceExponent) - 1;
  constexpr int kResultMost = (1 << kResultExponent) - 1;
  constexpr int kDropped = kSourceFraction - kResultFraction;
  constexpr SourceBits kHidden = SourceBits{1} << kSourceFraction;
  constexpr ResultBits kInfinity = static_cast<ResultBits>(kResultMost << kResultFraction);
  constexpr ResultBits kQuiet = static_cast<ResultBits>(1 << (kResultFraction - 1));

  SourceBits bits;
  static_assert(sizeof(bits) == sizeof(value), "the integer holds the float's bits");
  memcpy(&bits, &value, sizeof(bits));
  const ResultBits sign = static_cast<ResultBits>((bits >> (8 * sizeof(SourceBits) - 1))
                                                  << (8 * sizeof(ResultBits) - 1));
  const int biased = static_cast<int>(bits >> kSourceFraction & kSourceMost);
  SourceBits fraction = bits & (kHidden - 1);
  if (biased == kSourceMost && fraction != 0) {
    return static_cast<Result>(sign | kInfinity | kQuiet |
                               static_cast<ResultBits>(fraction >> kDropped));
  }
  // Counted as the result's, where 0 and below stand for ever smaller parts of the smallest one.
  const int exponent = biased - kSourceMost / 2 + kResultMost / 2;
  if (biased == kSourceMost || exponent >= kResultMost) {
    return static_cast<Result>(sign | kInfinity);
  }
  int dropped = kDropped;
  if (exponent <= 0) {
    dropped += 1 - exponent;
    fraction |= kHidden;
    if (dropped > kSourceFraction + 1) return static_cast<Result>(sign);
  }
  ResultBits result = static_cast<ResultBits>(fraction >> dropped);
  if (exponent > 0) result = static_cast<ResultBits>(result + (exponent << kResultFraction));
  const SourceBits rest = fraction & ((SourceBits{1} << dropped) - 1);
  const SourceBits half = SourceBits{1} << (dropped - 1);
  // A carry runs on into the exponent, up to infinity, as it should.
  if (rest > half || (rest == half && (result & 1) != 0)) ++result;
  return static_cast<Result>(sign | result);
}

// To a wider format, exactly.
template <typename Source, typename SourceBits, int kSourceFraction, typename Result,
          typename ResultBits, int kResultFraction>
inline Result __extendXfYf2__(Source value) {
  constexpr int kSourceExponent = 8 * sizeof(SourceBits) - 1 - kSourceFraction;
  constexpr int kResultExponent = 8 * sizeof(ResultBits) - 1 - kResultFraction;
  constexpr int kSourceMost = (1 << kSourceExponent) - 1;
  constexpr int kResultMost = (1 << kResultExponent) - 1;
  constexpr int kBias = kResultMost / 2 - kSourceMost / 2;
  constexpr ResultBits kHidden = ResultBits{1} << kResultFraction;

  SourceBits bits;
  static_assert(sizeof(bits) == sizeof(value), "the integer holds the float's bits");
  memcpy(&bits, &value, sizeof(bits));
  const ResultBits sign = static_cast<ResultBits>(bits >> (8 * sizeof(SourceBits) - 1))
                          << (8 * sizeof(ResultBits) - 1);
  int exponent = static_cast<int>(bits >> kSourceFraction & kSourceMost);
  ResultBits fraction =
      static_cast<ResultBits>(bits & ((SourceBits{1} << kSourceFraction) - 1))
      << (kResultFraction - kSourceFraction);
  if (exponent == kSourceMost) {
    exponent = kResultMost;
  } else if (exponent != 0) {
    exponent += kBias;
  } else if (fraction != 0) {
    exponent = kBias + 1;  // a subnormal has room for its own exponent here
    for (; (fraction & kHidden) == 0; --exponent) fraction <<= 1;
    fraction &= kHidden - 1;
  }
  const ResultBits joined =
      sign | static_cast<ResultBits>(exponent) << kResultFraction | fraction;
  Result result;
  static_assert(sizeof(result) == sizeof(joined), "the integer holds the float's bits");
  memcpy(&result, &joined, sizeof(result));
  return result;
}

#endif  // TVM_COMPILER_RT_BUILTIN_FP16_H_
