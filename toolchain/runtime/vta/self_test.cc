// See self_test.h.
#include "self_test.h"

#include <cstring>

#include "fault.h"
#include "self_test_programs.h"
#include "verify.h"

namespace vta {
namespace {

constexpr double kProbeTimeout = 1.0;
constexpr size_t kProbePage = 4096;
constexpr uint8_t kUntouched = 0x5a;

// Pages of the memory that the first program works in. The old revision takes an address of the new
// one for twice as much, so what is loaded is there twice, and what is stored tells where it went.
constexpr size_t kUopPage = 0, kInpPage = 1, kWgtPage = 3, kOutPage = 5;
constexpr size_t kProgramPage = 11, kNothingPage = 12, kProbePages = 13;

Instruction ProbeTransfer(const Config& config, Opcode opcode, Memory memory, size_t page,
                          uint32_t elements) {
  Instruction one;
  one.opcode = opcode;
  one.memory = memory;
  one.dram_base = static_cast<uint32_t>(page * kProbePage / config.ElementBytes(memory));
  one.x_size = elements;
  one.y_size = elements != 0 ? 1 : 0;
  one.x_stride = elements;
  return one;
}

Instruction ProbeGemm(uint32_t reset) {
  Instruction gemm;
  gemm.opcode = kGemm;
  gemm.reset = reset;
  gemm.uop_end = 2;
  gemm.iter_out = gemm.iter_in = 1;
  return gemm;
}

// OUT elements 0 and 1 become the input, and one of them is stored: the old revision takes a bit of
// the memory's number for the first bit of `sram_base`.
std::vector<Instruction> ProbeProgram(const Config& config) {
  std::vector<Instruction> program = {
      ProbeTransfer(config, kLoad, kUop, kUopPage, 2),
      ProbeTransfer(config, kLoad, kInp, kInpPage, 1),
      ProbeTransfer(config, kLoad, kWgt, kWgtPage, 1),
      ProbeGemm(1),
      ProbeGemm(0),
      ProbeTransfer(config, kStore, kOut, kOutPage, 1),
      ProbeTransfer(config, kLoad, kUop, 0, 0),
      Instruction()};
  program[2].push_next = program[4].pop_prev = 1;
  program[4].push_next = program[5].pop_prev = 1;
  program[5].push_prev = program[6].pop_next = 1;
  return program;
}

// Nothing, once in each block. A block begins its next turn as soon as one ends, with the base that
// its register has then: this is what the turn of an earlier base is spent on.
std::vector<Instruction> NothingProgram(const Config& config) {
  std::vector<Instruction> program = {ProbeTransfer(config, kLoad, kInp, 0, 0),
                                      ProbeTransfer(config, kLoad, kUop, 0, 0),
                                      ProbeTransfer(config, kStore, kOut, 0, 0),
                                      ProbeTransfer(config, kLoad, kUop, 0, 0), Instruction()};
  program[0].push_next = program[1].pop_prev = 1;
  program[1].push_next = program[2].pop_prev = 1;
  program[2].push_prev = program[3].pop_next = 1;
  return program;
}

void Encode(const Isa& isa, const std::vector<Instruction>& program, uint8_t* to) {
  for (size_t i = 0; i < program.size(); ++i) isa.Encode(program[i], to + i * kInstructionBytes);
}

void FillProbe(const Config& config, const DmaBuffer& memory) {
  const Isa isa(config, VTA_2020_12);
  memset(memory.data, kUntouched, kProbePages * kProbePage);
  const uint32_t uops[] = {isa.EncodeUop({0, 0, 0}), isa.EncodeUop({1, 0, 0})};
  memcpy(memory.data + kUopPage * kProbePage, uops, sizeof(uops));
  const std::vector<int8_t> input = TestNumbers(config.ElementBytes(kInp));
  const std::vector<int8_t> identity = IdentityWeights(config);
  for (size_t twice = 1; twice <= 2; ++twice) {
    memcpy(memory.data + twice * kInpPage * kProbePage, input.data(), input.size());
    memcpy(memory.data + twice * kWgtPage * kProbePage, identity.data(), identity.size());
  }
  Encode(isa, ProbeProgram(config), memory.data + kProgramPage * kProbePage);
  Encode(isa, NothingProgram(config), memory.data + kNothingPage * kProbePage);
}

void RunPage(Device* device, const DmaBuffer& memory, size_t page, size_t count, uint64_t base) {
  Program program;
  program.instructions = memory.physical + page * kProbePage;
  program.count = static_cast<uint32_t>(count);
  program.base = base;
  program.timeout_s = kProbeTimeout;
  device->Run(program);
}

uint32_t RecogniseRevision(Accelerator* accelerator, const Config& config) {
  const DmaBuffer memory = accelerator->Memory(kProbePages * kProbePage);
  FillProbe(config, memory);
  Device& device = accelerator->device();
  device.Flush(memory, 0, kProbePages * kProbePage);
  const size_t nothing = NothingProgram(config).size();
  RunPage(&device, memory, kNothingPage, nothing, memory.physical);
  RunPage(&device, memory, kProgramPage, ProbeProgram(config).size(), memory.physical);
  RunPage(&device, memory, kNothingPage, nothing, 0);
  device.Invalidate(memory, 0, kProbePages * kProbePage);
  const std::vector<int8_t> expected = TestNumbers(config.ElementBytes(kOut));
  const auto stored_at = [&](size_t page) {
    return memcmp(memory.data + page * kProbePage, expected.data(), expected.size()) == 0;
  };
  if (stored_at(kOutPage)) return VTA_2020_12;
  if (stored_at(2 * kOutPage)) return VTA_2020_07;
  Fail("self-test: the device finished a program and stored nothing where either revision of the "
       "instructions would: is the bitstream one of VTA, of configuration " + config.Name() + "?");
}

void RunCheck(Accelerator* accelerator, TestProgram* test) {
  std::vector<TensorBytes> tensors;
  for (std::vector<uint8_t>& one : test->tensors) tensors.push_back({one.data(), one.size()});
  LoadedStream stream(Verify(test->stream));
  accelerator->Run(stream, tensors);
  const std::vector<uint8_t>& out = test->tensors.back();
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] == test->expected[i]) continue;
    Fail("self-test: the device fails the check \"" + test->name + "\": byte " + std::to_string(i) +
         " is " + std::to_string(static_cast<int8_t>(out[i])) + " and should be " +
         std::to_string(static_cast<int8_t>(test->expected[i])));
  }
}

// As JSON has it. What a loader or a kernel says may be anything.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const bool plain = c >= ' ' && c <= '~';
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += plain ? c : '?';
  }
  return quoted + "\"";
}

}  // namespace

std::string SelfTestResult::Json() const {
  std::string checks;
  for (const std::string& one : passed) checks += (checks.empty() ? "" : ", ") + Quoted(one);
  return "{\"device\": " + Quoted(device) + ", \"configuration\": " + Quoted(configuration) +
         ", \"revision\": " + std::to_string(revision) + ", \"memory\": " + Quoted(memory.name) +
         ", \"passed_over\": " + Quoted(memory.why) + ", \"passed\": [" + checks + "]}";
}

SelfTestResult SelfTest(Accelerator* accelerator, const vta_config& logs) {
  const Config config(logs);
  SelfTestResult result;
  result.device = accelerator->device().Name();
  result.configuration = config.Name();
  result.memory = accelerator->device().Memory();
  result.revision = RecogniseRevision(accelerator, config);
  result.passed.push_back("revision");
  for (TestProgram& test : TestPrograms({logs, result.revision})) {
    RunCheck(accelerator, &test);
    result.passed.push_back(test.name);
  }
  return result;
}

}  // namespace vta
