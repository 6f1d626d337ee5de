// See base64.h.
#include "base64.h"

#include <array>

#include "fault.h"

namespace vta {
namespace {

constexpr uint8_t kNoDigit = 64;

std::array<uint8_t, 256> DigitTable() {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<uint8_t, 256> table;
  table.fill(kNoDigit);
  for (uint8_t i = 0; i < kDigits.size(); ++i) table[static_cast<uint8_t>(kDigits[i])] = i;
  return table;
}

}  // namespace

std::vector<uint8_t> FromBase64(std::string_view text) {
  static const std::array<uint8_t, 256> table = DigitTable();
  if (text.size() % 4 != 0) Fail("the stream's base64 text was cut");
  for (int i = 0; i < 2 && !text.empty() && text.back() == '='; ++i) text.remove_suffix(1);
  std::vector<uint8_t> bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0, count = 0;
  for (const char one : text) {
    const uint8_t digit = table[static_cast<uint8_t>(one)];
    if (digit == kNoDigit) Fail("the stream is not valid base64 text");
    bits = bits << 6 | digit;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<uint8_t>(bits >> count));
  }
  return bytes;
}

}  // namespace vta
