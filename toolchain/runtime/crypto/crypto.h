// Digests, signatures and base64: crypto.zig as C++ calls it.
#ifndef CRYPTO_CRYPTO_H_
#define CRYPTO_CRYPTO_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

extern "C" {
bool zig_ed25519_verify(const uint8_t* signature, const uint8_t* key, const void* message,
                         size_t size);
void zig_sha256(const void* data, size_t size, uint8_t* digest);
void zig_sha512(const void* data, size_t size, uint8_t* digest);
bool zig_base64_decode(const char* text, size_t size, char* bytes, size_t capacity,
                        size_t* decoded);
}

namespace edge {

constexpr size_t kKeyBytes = 32;
constexpr size_t kSignatureBytes = 64;

// SHA-256 as 64 hexadecimal digits, and both digests as bytes.
std::string HexSha256(std::string_view data);
std::string Sha256(std::string_view data);
std::string Sha512(std::string_view data);

// Whether an Ed25519 signature of 64 bytes by a public key of 32 holds for a message. Weak keys and
// forms that are not canonical never do.
bool Ed25519Holds(std::string_view signature, std::string_view key, std::string_view message);

// The bytes that a text of RFC 4648 stands for, padding and all; nothing where it is none.
std::optional<std::string> FromBase64(std::string_view text);

}  // namespace edge

#endif  // CRYPTO_CRYPTO_H_
