// See secrets.h.
#include "secrets.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "sockets.h"

namespace board_server {
namespace {

constexpr size_t kSecretBytes = 32;
constexpr char kHexDigits[] = "0123456789abcdef";

bool IsHexDigit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

}  // namespace

std::string SecretProblem(const std::string& key) {
  const bool fine =
      key.size() == 2 * kSecretBytes && std::all_of(key.begin(), key.end(), IsHexDigit);
  return fine ? "" : "must be of 64 hexadecimal digits";
}

bool IsSecret(const std::string& shown, const std::string& key) {
  if (key.empty() || shown.size() != key.size()) return false;
  volatile unsigned char different = 0;
  for (size_t i = 0; i < key.size(); ++i) {
    different = static_cast<unsigned char>(different | (shown[i] ^ key[i]));
  }
  return different == 0;
}

std::string NewSecret() {
  // Not getrandom(), which Android's C library lacks before API level 28.
  const Descriptor generator(open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  unsigned char bytes[kSecretBytes];
  if (!generator.open() || read(generator.get(), bytes, sizeof(bytes)) != sizeof(bytes)) {
    throw std::runtime_error("the board has no random numbers: /dev/urandom cannot be read");
  }
  std::string digits;
  for (unsigned char byte : bytes) {
    digits.push_back(kHexDigits[byte >> 4]);
    digits.push_back(kHexDigits[byte & 15]);
  }
  return digits;
}

}  // namespace board_server
