// See self_test_programs.h.
#include "self_test_programs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "isa.h"
#include "queues.h"

namespace vta {
namespace {

constexpr uint8_t kBefore = 0x77;  // what is in the written tensor before
constexpr uint32_t kPixels = 4;

// Writes a program whose stages wait for each other, one after the other.
class ProgramWriter {
 public:
  ProgramWriter(const char* name, const Encoding& encoding)
      : config_(encoding.logs), isa_(config_, encoding.revision) {
    test_.name = name;
    test_.stream.encoding = encoding;
  }

  const Config& config() const { return config_; }

  template <typename Number>
  uint32_t Tensor(Memory memory, const std::vector<Number>& numbers) {
    const size_t bytes = numbers.size() * sizeof(Number);
    test_.tensors.emplace_back(bytes);
    memcpy(test_.tensors.back().data(), numbers.data(), bytes);
    test_.stream.buffers.push_back(
        {memory, memory == kOut, static_cast<uint32_t>(bytes / config_.ElementBytes(memory))});
    return static_cast<uint32_t>(test_.stream.buffers.size() - 1);
  }

  void LoadUops(const std::vector<Uop>& uops) {
    for (const Uop& uop : uops) test_.stream.uops.push_back(isa_.EncodeUop(uop));
    Add(Rows(kLoad, kUop, 1, static_cast<uint32_t>(uops.size())), kUopSection);
  }

  void Load(Memory memory, uint32_t buffer, uint32_t elements) {
    Add(Rows(kLoad, memory, 1, elements), buffer);
  }

  static Instruction Rows(Opcode opcode, Memory memory, uint32_t rows, uint32_t columns) {
    Instruction one;
    one.opcode = opcode;
    one.memory = memory;
    one.y_size = rows;
    one.x_size = one.x_stride = columns;
    return one;
  }

  void Add(const Instruction& transfer, uint32_t buffer) {
    const auto number = static_cast<uint32_t>(program_.size());
    test_.stream.relocations.push_back({number, buffer});
    program_.push_back(transfer);
  }

  Instruction& Compute(const Instruction& one) {
    program_.push_back(one);
    return program_.back();
  }

  // An ALU operation with a number, on elements 0 and following.
  void AluImmediate(AluOp op, int32_t number, uint32_t elements) {
    Instruction& alu = Compute(Nest(kAlu, 1, elements));
    alu.alu_op = op;
    alu.use_imm = 1;
    alu.imm = static_cast<uint16_t>(number);
  }

  // Uop 0, moved on by one ACC element in every inner iteration.
  static Instruction Nest(Opcode opcode, uint32_t out, uint32_t in) {
    Instruction nest;
    nest.opcode = opcode;
    nest.uop_end = 1;
    nest.iter_out = out;
    nest.iter_in = in;
    nest.dst_factor_in = 1;
    return nest;
  }

  // Adds the STORE, the end, and the tokens: the last LOAD of the load stage releases the next
  // instruction of the compute stage, and its last one the STORE.
  TestProgram Stored(const Instruction& store, uint32_t buffer, std::vector<uint8_t> expected) {
    for (size_t i = program_.size(); i-- > 0;) {
      if (StageOf(program_[i]) != kLoadStage) continue;
      program_[i].push_next = 1;
      program_[i + 1].pop_prev = 1;
      break;
    }
    program_.back().push_next = 1;
    Add(store, buffer);
    program_.back().pop_prev = program_.back().push_prev = 1;
    Compute(Rows(kLoad, kUop, 0, 0)).pop_next = 1;
    Compute(Instruction());
    test_.stream.instructions.resize(program_.size() * kInstructionBytes);
    for (size_t i = 0; i < program_.size(); ++i) {
      isa_.Encode(program_[i], test_.stream.instructions.data() + i * kInstructionBytes);
    }
    test_.expected = std::move(expected);
    return test_;
  }

 private:
  Config config_;
  Isa isa_;
  TestProgram test_;
  std::vector<Instruction> program_;
};

std::vector<int8_t> Untouched(size_t bytes) {
  return std::vector<int8_t>(bytes, static_cast<int8_t>(kBefore));
}

uint8_t LowByte(int32_t number) { return static_cast<uint8_t>(static_cast<uint32_t>(number)); }

// Two layers of weights on a few pixels, on top of what is in ACC; shifted, and cut at both ends.
TestProgram GemmProgram(const Encoding& encoding) {
  ProgramWriter writer("gemm", encoding);
  const Config& config = writer.config();
  const uint32_t row = config.ElementBytes(kInp), block = config.Block();
  const std::vector<int8_t> inp = TestNumbers(size_t{2} * kPixels * row);
  const std::vector<int8_t> wgt = TestNumbers(size_t{2} * block * block);
  std::vector<int32_t> sums(size_t{kPixels} * row);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<int32_t>(i * 1000) - 30000;
  const uint32_t inp_buffer = writer.Tensor(kInp, inp), wgt_buffer = writer.Tensor(kWgt, wgt);
  const uint32_t acc_buffer = writer.Tensor(kAcc, sums);
  const uint32_t out_buffer = writer.Tensor(kOut, Untouched(sums.size()));
  writer.LoadUops({{0, 0, 0}});
  writer.Load(kAcc, acc_buffer, kPixels);
  writer.Load(kInp, inp_buffer, 2 * kPixels);
  writer.Load(kWgt, wgt_buffer, 2);
  Instruction& gemm = writer.Compute(ProgramWriter::Nest(kGemm, 2, kPixels));
  gemm.src_factor_in = gemm.wgt_factor_out = 1;
  gemm.src_factor_out = kPixels;
  writer.AluImmediate(kShr, 9, kPixels);
  writer.AluImmediate(kMax, -100, kPixels);
  writer.AluImmediate(kMin, 90, kPixels);
  std::vector<uint8_t> expected;
  for (size_t i = 0; i < sums.size(); ++i) {
    int32_t sum = sums[i];
    for (size_t layer = 0; layer < 2; ++layer) {
      const int8_t* x = &inp[layer * sums.size() + i / block * block];
      const int8_t* w = &wgt[(layer * block + i % block) * block];
      for (uint32_t k = 0; k < block; ++k) sum += x[k] * w[k];
    }
    expected.push_back(LowByte(std::min(std::max(sum >> 9, -100), 90)));
  }
  return writer.Stored(ProgramWriter::Rows(kStore, kOut, 1, kPixels), out_buffer, expected);
}

// One operation with a second operand for each of four ACC elements; the shift is to the left.
TestProgram AluProgram(const Encoding& encoding) {
  constexpr AluOp kOps[kPixels] = {kMin, kMax, kAdd, kShr};
  ProgramWriter writer("alu", encoding);
  const uint32_t row = writer.config().ElementBytes(kInp);
  std::vector<int32_t> numbers;
  for (const int8_t one : TestNumbers(size_t{2} * kPixels * row)) numbers.push_back(one);
  int32_t* const shifts = &numbers[size_t{2 * kPixels - 1} * row];
  for (uint32_t i = 0; i < row; ++i) shifts[i] = static_cast<int32_t>(i % 8) - 4;
  const uint32_t acc_buffer = writer.Tensor(kAcc, numbers);
  const uint32_t out_buffer = writer.Tensor(kOut, Untouched(size_t{kPixels} * row));
  writer.LoadUops({{0, 4, 0}, {1, 5, 0}, {2, 6, 0}, {3, 7, 0}});
  writer.Load(kAcc, acc_buffer, 2 * kPixels);
  for (uint32_t i = 0; i < kPixels; ++i) {
    Instruction& alu = writer.Compute(ProgramWriter::Nest(kAlu, 1, 1));
    alu.alu_op = kOps[i];
    alu.uop_bgn = i;
    alu.uop_end = i + 1;
  }
  std::vector<uint8_t> expected;
  for (size_t i = 0; i < size_t{kPixels} * row; ++i) {
    const int32_t x = numbers[i], y = numbers[i + size_t{kPixels} * row];
    const int32_t shifted = y < 0 ? x * (1 << -y) : x >> y;
    const int32_t results[] = {std::min(x, y), std::max(x, y), x + y, shifted};
    expected.push_back(LowByte(results[i / row]));
  }
  return writer.Stored(ProgramWriter::Rows(kStore, kOut, 1, kPixels), out_buffer, expected);
}

// A padded tile out of the middle of a larger tensor, and into the middle of another.
TestProgram TileProgram(const Encoding& encoding) {
  constexpr uint32_t kRows = 2, kColumns = 3, kInStride = 4, kOutStride = 6;
  constexpr uint32_t kTileRows = kRows + 2, kTileColumns = kColumns + 2;
  ProgramWriter writer("load and store", encoding);
  const uint32_t row = writer.config().ElementBytes(kInp);
  const std::vector<int8_t> inp = TestNumbers(size_t{kRows} * kInStride * row);
  const uint32_t inp_buffer = writer.Tensor(kInp, inp);
  const uint32_t wgt_buffer = writer.Tensor(kWgt, IdentityWeights(writer.config()));
  const uint32_t out_buffer = writer.Tensor(kOut, Untouched(size_t{kTileRows} * kOutStride * row));
  writer.LoadUops({{0, 0, 0}});
  Instruction load = ProgramWriter::Rows(kLoad, kInp, kRows, kColumns);
  load.dram_base = 1;
  load.x_stride = kInStride;
  load.y_pad_0 = load.y_pad_1 = load.x_pad_0 = load.x_pad_1 = 1;
  writer.Add(load, inp_buffer);
  writer.Load(kWgt, wgt_buffer, 1);
  writer.Compute(ProgramWriter::Nest(kGemm, 1, kTileRows * kTileColumns)).reset = 1;
  Instruction& gemm = writer.Compute(ProgramWriter::Nest(kGemm, 1, kTileRows * kTileColumns));
  gemm.src_factor_in = 1;
  writer.AluImmediate(kAdd, 0, kTileRows * kTileColumns);
  Instruction store = ProgramWriter::Rows(kStore, kOut, kTileRows, kTileColumns);
  store.x_stride = kOutStride;
  std::vector<uint8_t> expected(size_t{kTileRows} * kOutStride * row, kBefore);
  for (uint32_t y = 0; y < kTileRows; ++y) {
    uint8_t* const tile_row = &expected[size_t{y} * kOutStride * row];
    memset(tile_row, 0, size_t{kTileColumns} * row);
    if (y == 0 || y > kRows) continue;
    memcpy(tile_row + row, &inp[(size_t{y - 1} * kInStride + 1) * row], size_t{kColumns} * row);
  }
  return writer.Stored(store, out_buffer, expected);
}

}  // namespace

std::vector<int8_t> TestNumbers(size_t count) {
  std::vector<int8_t> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<int8_t>(static_cast<int32_t>((i * 37 + 11) % 255) - 127);
  }
  return numbers;
}

std::vector<int8_t> IdentityWeights(const Config& config) {
  std::vector<int8_t> weights(config.ElementBytes(kWgt));
  for (size_t i = 0; i < config.Block(); ++i) weights[i * config.Block() + i] = 1;
  return weights;
}

std::vector<TestProgram> TestPrograms(const Encoding& encoding) {
  return {GemmProgram(encoding), AluProgram(encoding), TileProgram(encoding)};
}

}  // namespace vta
