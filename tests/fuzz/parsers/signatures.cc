// release.json.sig. Whatever is changed in it, a signature of somebody else's message never holds.
#include "fuzz.h"
#include "model/fault.h"
#include "trust/sshsig.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Accepts<edge::Fault>([&] {
    for (const edge::Signature& signature : edge::ReadSignatures(fuzz::Text(data, size), "it")) {
      fuzz::Must(signature.key.size() == 32 && signature.value.size() == 64);
      fuzz::Must(!edge::Holds(signature, "a message that nobody has signed"));
    }
  });
  return 0;
}
