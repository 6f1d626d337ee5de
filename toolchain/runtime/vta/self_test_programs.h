// What the self-test runs once it knows the revision: small streams and their results.
#ifndef VTA_SELF_TEST_PROGRAMS_H_
#define VTA_SELF_TEST_PROGRAMS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "config.h"
#include "stream.h"

namespace vta {

struct TestProgram {
  std::string name;
  Stream stream;
  std::vector<std::vector<uint8_t>> tensors;  // of the stream's buffers; the last is written
  std::vector<uint8_t> expected;              // what is in it afterwards
};

// Numbers that look like none of the device's own, -127 to 127.
std::vector<int8_t> TestNumbers(size_t count);

// One element of weights that gives back its input.
std::vector<int8_t> IdentityWeights(const Config& config);

std::vector<TestProgram> TestPrograms(const Encoding& encoding);

}  // namespace vta

#endif  // VTA_SELF_TEST_PROGRAMS_H_
