// Helpers for text. Written from how TVM's runtime uses them.
#ifndef TVM_SUPPORT_UTILS_H_
#define TVM_SUPPORT_UTILS_H_

#include <tvm/ffi/string.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace tvm {
namespace support {

inline bool IsNumber(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

inline bool StartsWith(const ffi::String& text, std::string_view prefix) {
  return std::string_view(text.data(), text.size()).substr(0, prefix.size()) == prefix;
}

}  // namespace support
}  // namespace tvm

#endif  // TVM_SUPPORT_UTILS_H_
