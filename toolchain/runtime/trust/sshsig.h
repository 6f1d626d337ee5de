// Signatures as OpenSSH writes them: its PROTOCOL.sshsig, with Ed25519 keys.
#ifndef TRUST_SSHSIG_H_
#define TRUST_SSHSIG_H_

#include <string>
#include <string_view>
#include <vector>

namespace edge {

// What a release's signature is for: with another namespace it is a signature of something else.
constexpr std::string_view kNamespace = "edge-release";

struct Signature {
  std::string key;    // 32 bytes
  std::string hash;   // "sha256" or "sha512": what the message is hashed with
  std::string value;  // 64 bytes
};

// The key in a public key's base64 text, `AAAAC3Nza...`. Faults are kExitUntrusted.
std::string ReadKey(std::string_view base64, const std::string& file);

// The armoured signatures of a file, one after the other. Faults are kExitUntrusted.
std::vector<Signature> ReadSignatures(std::string_view text, const std::string& file);

bool Holds(const Signature& signature, std::string_view message);

}  // namespace edge

#endif  // TRUST_SSHSIG_H_
