// See compute.h.
#include "compute.h"

#include <algorithm>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "nest.h"

namespace vta {
namespace {

constexpr uint32_t kUsualBlock = 16;

// Sums wrap as the machine's 32 bits do.
int32_t WrappedSum(int32_t one, int32_t other) {
  return static_cast<int32_t>(static_cast<uint32_t>(one) + static_cast<uint32_t>(other));
}

// acc[out] += sum over in of inp[in] * wgt[out][in], for weights in the order of Sram. kBlock is
// the block where it is known to the compiler, and 0 elsewhere.
template <uint32_t kBlock>
inline void MultiplyAdd(const int8_t* inp, const int16_t* wgt, int32_t* acc, uint32_t any_block) {
  const uint32_t block = kBlock != 0 ? kBlock : any_block;
  for (uint32_t in = 0; in < block; in += 2) {
    const int32_t first = inp[in];
    const int32_t second = inp[in + 1];
    for (uint32_t out = 0; out < block; ++out) {
      const int32_t product = first * wgt[2 * out] + second * wgt[2 * out + 1];
      acc[out] = WrappedSum(acc[out], product);
    }
    wgt += 2 * block;
  }
}

#ifdef __SSE2__

// Two columns of weights, those of inputs 2 * kPair and 2 * kPair + 1 of `inp`, onto 16 sums.
template <int kPair>
inline void AddPair(__m128i inp, const __m128i* wgt, __m128i sums[4]) {
  const __m128i pair = _mm_shuffle_epi32(inp, kPair * 0x55);
  for (int i = 0; i < 4; ++i) {
    sums[i] = _mm_add_epi32(sums[i], _mm_madd_epi16(pair, _mm_loadu_si128(wgt + 4 * kPair + i)));
  }
}

inline void AddFourPairs(__m128i inp, const __m128i* wgt, __m128i sums[4]) {
  AddPair<0>(inp, wgt, sums);
  AddPair<1>(inp, wgt, sums);
  AddPair<2>(inp, wgt, sums);
  AddPair<3>(inp, wgt, sums);
}

template <>
inline void MultiplyAdd<kUsualBlock>(const int8_t* inp, const int16_t* wgt, int32_t* acc,
                                     uint32_t) {
  __m128i* to = reinterpret_cast<__m128i*>(acc);
  __m128i sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = _mm_loadu_si128(to + i);
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(inp));
  const __m128i* weights = reinterpret_cast<const __m128i*>(wgt);
  // A byte doubled to 16 bits and shifted down is the byte with its sign.
  AddFourPairs(_mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8), weights, sums);
  AddFourPairs(_mm_srai_epi16(_mm_unpackhi_epi8(bytes, bytes), 8), weights + 16, sums);
  for (int i = 0; i < 4; ++i) _mm_storeu_si128(to + i, sums[i]);
}

#endif  // __SSE2__

inline void LowBytes(const int32_t* acc, int8_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<int8_t>(acc[i]);
}

template <uint32_t kBlock>
void GemmOf(const Config& config, const Instruction& gemm, const std::vector<Uop>& uops,
            Sram* sram) {
  const uint32_t block = kBlock != 0 ? kBlock : config.Block();
  const size_t row = static_cast<size_t>(config.Batch()) * block;
  ForEachStep(gemm, uops, [&](size_t dst, size_t src, size_t wgt) {
    for (size_t i = 0; i < row; i += block) {
      int32_t* acc = &sram->acc[dst * row + i];
      MultiplyAdd<kBlock>(&sram->inp[src * row + i], &sram->wgt[wgt * block * block], acc, block);
      LowBytes(acc, &sram->out[dst * row + i], block);
      if (gemm.reset != 0) std::fill_n(acc, block, 0);
    }
  });
}

// `op` takes the old value and the second operand. A whole row is computed before it is written.
template <typename Op>
void AluOf(const Config& config, const Instruction& alu, const std::vector<Uop>& uops, Sram* sram,
           Op op) {
  const size_t row = static_cast<size_t>(config.Batch()) * config.Block();
  const std::vector<int32_t> immediate(row, alu.Immediate());
  ForEachStep(alu, uops, [&](size_t dst, size_t src, size_t) {
    int32_t* acc = &sram->acc[dst * row];
    const int32_t* second = alu.use_imm != 0 ? immediate.data() : &sram->acc[src * row];
    for (size_t i = 0; i < row; ++i) acc[i] = op(acc[i], second[i]);
    LowBytes(acc, &sram->out[dst * row], row);
  });
}

int32_t Shifted(int32_t value, int32_t operand) {
  const int32_t low = operand & 31;
  const int32_t right = low < 16 ? low : low - 32;
  if (right >= 0) return value >> right;
  return static_cast<int32_t>(static_cast<uint32_t>(value) << -right);
}

}  // namespace

void RunGemm(const Config& config, const Instruction& gemm, const std::vector<Uop>& uops,
             Sram* sram) {
  if (config.Block() == kUsualBlock) {
    GemmOf<kUsualBlock>(config, gemm, uops, sram);
  } else {
    GemmOf<0>(config, gemm, uops, sram);
  }
}

void RunAlu(const Config& config, const Instruction& alu, const std::vector<Uop>& uops,
            Sram* sram) {
  const auto run = [&](auto op) { AluOf(config, alu, uops, sram, op); };
  switch (alu.alu_op) {
    case kMin: return run([](int32_t one, int32_t other) { return std::min(one, other); });
    case kMax: return run([](int32_t one, int32_t other) { return std::max(one, other); });
    case kAdd: return run(WrappedSum);
    default: return run(Shifted);
  }
}

}  // namespace vta
