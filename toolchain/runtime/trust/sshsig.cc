// See sshsig.h. A signature is read before it is checked: each length in it is held against what is
// there, and the whole must be used up.
#include "sshsig.h"

#include <cstdint>

#include "../crypto/crypto.h"
#include "../model/fault.h"

namespace edge {
namespace {

constexpr std::string_view kBegin = "-----BEGIN SSH SIGNATURE-----\n";
constexpr std::string_view kEnd = "\n-----END SSH SIGNATURE-----";
constexpr std::string_view kMagic = "SSHSIG";
constexpr std::string_view kEd25519 = "ssh-ed25519";
constexpr uint32_t kVersion = 1;
constexpr size_t kMaxSignatures = 16;

[[noreturn]] void Fail(const std::string& what, const std::string& file) {
  throw Fault(kExitUntrusted, what, file);
}

// Takes SSH's values from the front of bytes: RFC 4251, section 5.
class Reader {
 public:
  Reader(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  std::string_view Take(size_t size) {
    if (size > bytes_.size()) Fail("a key or signature is cut off", file_);
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  uint32_t Number() {
    uint32_t number = 0;
    for (const char byte : Take(sizeof(number))) number = number << 8 | static_cast<uint8_t>(byte);
    return number;
  }

  std::string_view Text() { return Take(Number()); }

  // A value that can only be one.
  void Expect(std::string_view found, std::string_view wanted, const char* what) const {
    if (found == wanted) return;
    Fail(std::string(what) + " is \"" + std::string(found.substr(0, 64)) + "\", not \"" +
             std::string(wanted) + "\"",
         file_);
  }

  void End() const {
    if (!bytes_.empty()) Fail("a key or signature has more bytes than it should", file_);
  }

 private:
  std::string_view bytes_;
  const std::string& file_;
};

std::string Decoded(std::string_view base64, const std::string& file) {
  const std::optional<std::string> bytes = FromBase64(base64);
  if (!bytes) Fail("a key or signature is not valid base64 text", file);
  return *bytes;
}

// "ssh-ed25519" and so many bytes.
std::string ReadTyped(std::string_view bytes, size_t size, const char* what,
                      const std::string& file) {
  Reader reader(bytes, file);
  reader.Expect(reader.Text(), kEd25519, what);
  const std::string value(reader.Text());
  reader.End();
  if (value.size() != size) Fail("a key or signature has a wrong length", file);
  return value;
}

Signature ReadSignature(std::string_view base64, const std::string& file) {
  const std::string bytes = Decoded(base64, file);
  Reader reader(bytes, file);
  Signature signature;
  reader.Expect(reader.Take(kMagic.size()), kMagic, "the beginning of a signature");
  if (reader.Number() != kVersion) Fail("a signature has another version than 1", file);
  signature.key = ReadTyped(reader.Text(), kKeyBytes, "the type of a signature's key", file);
  reader.Expect(reader.Text(), kNamespace, "the namespace of a signature");
  reader.Expect(reader.Text(), "", "what OpenSSH has reserved");
  signature.hash = reader.Text();
  if (signature.hash != "sha512") reader.Expect(signature.hash, "sha256", "the hash of a signature");
  signature.value = ReadTyped(reader.Text(), kSignatureBytes, "the type of a signature", file);
  reader.End();
  return signature;
}

// Without the line ends, wherever they are.
std::string OneLineOf(std::string_view lines) {
  std::string joined;
  for (const char c : lines) {
    if (c != '\n' && c != '\r') joined += c;
  }
  return joined;
}

std::string Text(std::string_view value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value.size() >> shift);
  return text.append(value);
}

}  // namespace

std::string ReadKey(std::string_view base64, const std::string& file) {
  return ReadTyped(Decoded(base64, file), kKeyBytes, "the type of a key", file);
}

std::vector<Signature> ReadSignatures(std::string_view text, const std::string& file) {
  std::vector<Signature> signatures;
  while (!text.empty()) {
    const size_t end = text.find(kEnd);
    if (text.substr(0, kBegin.size()) != kBegin || end == std::string_view::npos ||
        end < kBegin.size()) {
      Fail("this is not an OpenSSH signature", file);
    }
    if (signatures.size() == kMaxSignatures) Fail("there are too many signatures", file);
    const std::string_view body = text.substr(kBegin.size(), end - kBegin.size());
    signatures.push_back(ReadSignature(OneLineOf(body), file));
    text.remove_prefix(end + kEnd.size());
    if (!text.empty() && text.front() != '\n') Fail("this is not an OpenSSH signature", file);
    if (!text.empty()) text.remove_prefix(1);
  }
  if (signatures.empty()) Fail("there is no signature", file);
  return signatures;
}

bool Holds(const Signature& signature, std::string_view message) {
  const std::string digest = signature.hash == "sha256" ? Sha256(message) : Sha512(message);
  const std::string about = Text(kNamespace) + Text("") + Text(signature.hash) + Text(digest);
  return Ed25519Holds(signature.value, signature.key, std::string(kMagic) + about);
}

}  // namespace edge
