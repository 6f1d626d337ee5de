// What the device's reader of signatures makes of many of them.
//
//   verdicts KEY MESSAGE SIGNATURE fuzz COUNT SEED   mutates a signature, or its message, so often;
//                                                    prints how many held all the same
//   verdicts KEY MESSAGE read FILE...                prints 1 or 0 for each file: whether it is a
//                                                    signature of the message by the key
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "crypto/crypto.h"
#include "model/fault.h"
#include "trust/sshsig.h"

namespace {

constexpr char kBegin[] = "-----BEGIN SSH SIGNATURE-----\n";
constexpr char kEnd[] = "\n-----END SSH SIGNATURE-----\n";

std::string ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool Accepted(const std::string& key, const std::string& message, const std::string& signature) {
  try {
    for (const edge::Signature& one : edge::ReadSignatures(signature, "it")) {
      if (one.key == key && edge::Holds(one, message)) return true;
    }
  } catch (const edge::Fault&) {
  }
  return false;
}

std::string Base64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    unsigned bits = 0;
    for (size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0);
    }
    for (size_t i = 0; i < 4; ++i) {
      text += at + i > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * i) & 63];
    }
  }
  return text;
}

// Changes one to four bits, cuts, repeats or moves bytes: never to what it was.
std::string Mutated(const std::string& bytes, std::mt19937_64* random) {
  const auto below = [random](size_t limit) { return static_cast<size_t>((*random)() % limit); };
  std::string changed = bytes;
  while (changed == bytes) {
    const size_t at = below(bytes.size());
    switch (below(5)) {
      case 0:
        changed.resize(at);
        break;
      case 1:
        changed.insert(at, changed.substr(at, 1 + below(8)));
        break;
      case 2:
        changed.erase(at, 1 + below(8));
        break;
      default:
        for (size_t i = 0; i <= below(4); ++i) {
          changed[below(changed.size())] ^= static_cast<char>(1 << below(8));
        }
    }
  }
  return changed;
}

std::string Decoded(std::string armour) {
  armour = armour.substr(sizeof(kBegin) - 1, armour.find("\n-----END") - sizeof(kBegin) + 1);
  std::string joined;
  for (const char c : armour) {
    if (c != '\n') joined += c;
  }
  return *edge::FromBase64(joined);
}

int Fuzz(const std::string& key, const std::string& message, const std::string& signature,
         long count, unsigned long seed) {
  std::mt19937_64 random(seed);
  if (!Accepted(key, message, signature)) return 1;  // then nothing would be shown
  const std::string bytes = Decoded(signature);
  long held = 0;
  for (long i = 0; i < count; ++i) {
    const bool about = i % 4 == 0;
    const std::string armour =
        about ? signature : kBegin + Base64(Mutated(bytes, &random)) + kEnd;
    held += Accepted(key, about ? Mutated(message, &random) : message, armour);
  }
  printf("%ld\n", held);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string key = edge::ReadKey(argv[1], "the key"), message = ReadFile(argv[2]);
  if (argc == 7 && std::string(argv[4]) == "fuzz") {
    return Fuzz(key, message, ReadFile(argv[3]), atol(argv[5]), strtoul(argv[6], nullptr, 10));
  }
  for (int i = 4; i < argc; ++i) printf("%d\n", Accepted(key, message, ReadFile(argv[i])));
  return 0;
}
