// The power-on self-test: which revision of the instructions a device has, and whether it computes
// what it should.
#ifndef VTA_SELF_TEST_H_
#define VTA_SELF_TEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "device.h"
#include "run.h"
#include "stream.h"

namespace vta {

struct SelfTestResult {
  std::string device;
  std::string configuration;
  uint32_t revision = 0;
  MemoryKind memory;
  std::vector<std::string> passed;  // checks, in their order

  std::string Json() const;
};

// Throws Fault where the device does not finish, has neither revision, or fails a check, which the
// message names with the first wrong value.
//
// The revisions put addresses at different bits, so that a program for one would write anywhere on
// the other. The first program is safe on both: its addresses are small and count from base
// registers, and what it means to either revision stays within this device's own memory.
SelfTestResult SelfTest(Accelerator* accelerator, const vta_config& logs);

}  // namespace vta

#endif  // VTA_SELF_TEST_H_
