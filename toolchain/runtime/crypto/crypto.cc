// See crypto.h.
#include "crypto.h"

namespace edge {
namespace {

const uint8_t* BytesOf(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

template <size_t size>
std::string Digest(void (*hash)(const void*, size_t, uint8_t*), std::string_view data) {
  std::string digest(size, '\0');
  hash(data.data(), data.size(), reinterpret_cast<uint8_t*>(digest.data()));
  return digest;
}

}  // namespace

std::string Sha256(std::string_view data) { return Digest<32>(zig_sha256, data); }

std::string Sha512(std::string_view data) { return Digest<64>(zig_sha512, data); }

std::string HexSha256(std::string_view data) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : Sha256(data)) {
    text += kDigits[static_cast<uint8_t>(byte) >> 4];
    text += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  return text;
}

bool Ed25519Holds(std::string_view signature, std::string_view key, std::string_view message) {
  return signature.size() == kSignatureBytes && key.size() == kKeyBytes &&
         zig_ed25519_verify(BytesOf(signature), BytesOf(key), message.data(), message.size());
}

std::optional<std::string> FromBase64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  size_t size = 0;
  if (!zig_base64_decode(text.data(), text.size(), bytes.data(), bytes.size(), &size)) return {};
  bytes.resize(size);
  return bytes;
}

}  // namespace edge
