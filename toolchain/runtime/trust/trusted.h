// Whom a device trusts, and with what: the files of one folder, /etc/edge-toolchain unless said
// otherwise. They are somebody's who may change the device: root, or whoever runs this.
#ifndef TRUST_TRUSTED_H_
#define TRUST_TRUSTED_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace edge {

constexpr char kTrustFolder[] = "/etc/edge-toolchain";

struct Signer {
  std::string name;  // the first word of its line
  std::string key;   // 32 bytes
};

struct Trust {
  std::string folder;
  std::vector<Signer> signers;  // none of them revoked
  std::vector<std::string> revoked;  // keys
  int64_t threshold = 1;  // so many of them must have signed
  std::string board;  // the board type that this device is; empty where nobody said
};

// What a folder says; nothing where it has no file `trusted`, as on a device that takes any release.
// That the file cannot be seen does not say that there is none. Faults are kExitUntrusted.
std::optional<Trust> ReadTrust(const std::string& folder);

// Whose a file must be: root's or the caller's, and nobody else's to change; or anybody's.
enum class Owner { kOurs, kAnybody };

// The content of a small file; nothing where there is none. Faults are kExitUntrusted.
std::optional<std::string> ReadIfThere(const std::string& path, Owner owner);

// The number in a small file: a floor, or a threshold. Nothing where there is no such file. Faults
// are kExitUntrusted.
std::optional<int64_t> ReadNumber(const std::string& path, Owner owner);

}  // namespace edge

#endif  // TRUST_TRUSTED_H_
