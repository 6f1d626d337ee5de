// See config.h.
#include "config.h"

#include "fault.h"

namespace vta {
namespace {

constexpr uint32_t kLogByte = 3;   // of its bits
constexpr uint32_t kLogUop = 2;    // of its bytes
constexpr uint32_t kLogMost = 24;  // of an SRAM's bytes

void CheckRange(const char* name, uint32_t value, uint32_t least, uint32_t most) {
  if (value >= least && value <= most) return;
  Fail(std::string(name) + " is " + std::to_string(value) + ", not within " +
       std::to_string(least) + " to " + std::to_string(most));
}

}  // namespace

const char* MemoryName(uint32_t memory) {
  static constexpr const char* kNames[] = {"UOP", "WGT", "INP", "ACC", "OUT"};
  return memory < kMemories ? kNames[memory] : "unknown";
}

Config::Config(const vta_config& logs) : logs_(logs) {
  CheckRange("LOG_INP_WIDTH", logs.log_inp_width, 3, 3);
  CheckRange("LOG_WGT_WIDTH", logs.log_wgt_width, 3, 3);
  CheckRange("LOG_ACC_WIDTH", logs.log_acc_width, 5, 5);
  CheckRange("LOG_BATCH", logs.log_batch, 0, 6);
  CheckRange("LOG_BLOCK", logs.log_block, 1, 6);
  // At least two elements each.
  CheckRange("LOG_UOP_BUFF_SIZE", logs.log_uop_buff_size, LogElementBytes(kUop) + 1, kLogMost);
  CheckRange("LOG_INP_BUFF_SIZE", logs.log_inp_buff_size, LogElementBytes(kInp) + 1, kLogMost);
  CheckRange("LOG_WGT_BUFF_SIZE", logs.log_wgt_buff_size, LogElementBytes(kWgt) + 1, kLogMost);
  CheckRange("LOG_ACC_BUFF_SIZE", logs.log_acc_buff_size, LogElementBytes(kAcc) + 1, kLogMost);
}

std::string Config::Name() const {
  const auto bits = [](uint32_t log) { return std::to_string(1u << log); };
  const auto size = [](uint32_t log) { return "_" + std::to_string(log); };
  return bits(logs_.log_batch) + "x" + bits(logs_.log_block) + "_i" + bits(logs_.log_inp_width) +
         "w" + bits(logs_.log_wgt_width) + "a" + bits(logs_.log_acc_width) +
         size(logs_.log_uop_buff_size) + size(logs_.log_inp_buff_size) +
         size(logs_.log_wgt_buff_size) + size(logs_.log_acc_buff_size);
}

uint32_t Config::LogBytes(Memory memory) const {
  switch (memory) {
    case kUop: return logs_.log_uop_buff_size;
    case kWgt: return logs_.log_wgt_buff_size;
    case kInp: return logs_.log_inp_buff_size;
    case kAcc: return logs_.log_acc_buff_size;
    default: return logs_.log_acc_buff_size + logs_.log_inp_width - logs_.log_acc_width;
  }
}

uint32_t Config::LogElementBytes(Memory memory) const {
  const uint32_t row = logs_.log_batch + logs_.log_block;  // log2 of an activation's numbers
  switch (memory) {
    case kUop: return kLogUop;
    case kWgt: return 2u * logs_.log_block + logs_.log_wgt_width - kLogByte;
    case kAcc: return row + logs_.log_acc_width - kLogByte;
    default: return row + logs_.log_inp_width - kLogByte;
  }
}

}  // namespace vta
