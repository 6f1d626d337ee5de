// Text that stands for bytes: RFC 4648.
#ifndef VTA_BASE64_H_
#define VTA_BASE64_H_

#include <cstdint>
#include <string_view>
#include <vector>

namespace vta {

// Throws Fault where it is no base64, or not all of one.
std::vector<uint8_t> FromBase64(std::string_view text);

}  // namespace vta

#endif  // VTA_BASE64_H_
