// The files of /etc/edge-toolchain. The first byte says which of them the rest is.
#include "trust/trusted.h"

#include <unistd.h>

#include "fuzz.h"
#include "model/fault.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kFiles[] = {"trusted", "revoked", "threshold", "board"};
  static const std::string folder = fuzz::Folder();
  if (size == 0) return 0;
  for (const char* name : kFiles) unlink((folder + "/" + name).c_str());
  fuzz::Write(folder + "/trusted", data, 0);
  fuzz::Write(folder + "/" + kFiles[data[0] % 4], data + 1, size - 1);
  fuzz::Accepts<edge::Fault>([&] {
    const auto trust = edge::ReadTrust(folder);
    fuzz::Must(trust.has_value() && trust->threshold >= 1);
    for (const edge::Signer& signer : trust->signers) fuzz::Must(signer.key.size() == 32);
  });
  return 0;
}
