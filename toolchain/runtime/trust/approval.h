// Whether a device takes a release: its statement, who signed that, and what it says of each file.
#ifndef TRUST_APPROVAL_H_
#define TRUST_APPROVAL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "../model/manifest.h"
#include "trusted.h"

namespace edge {

// A statement, and the signatures under it: one file, so that both change at once.
constexpr char kSigned[] = "release.signed";
constexpr char kDescription[] = "oci.json";

// What a signer says of a release.
struct Statement {
  std::string bundle;  // 64 hexadecimal digits
  std::string model;
  std::string board;
  int64_t sequence = 0;
  int64_t minimum = 0;  // the floor from this release on; 0 leaves it
};

struct Approval {
  Statement statement;
  std::vector<std::string> signers;  // names of those whose signatures count
  int64_t floor = 0;                 // least sequence of this model that the device takes
  Digests digests;
};

// Checks all but the files themselves, whose digests it returns: `CheckFiles` reads them, or whoever
// loads them. What was signed is the release's own file, or another one that may become it. Faults
// are kExitUntrusted.
Approval Approve(const std::string& release, const Trust& trust, const std::string& with = "");

// Holds what a release's manifest says against its statement. Faults are kExitUntrusted.
void CheckAgrees(const Statement& statement, const Manifest& manifest);

// Hashes every file of a release; one of another size is not read. Faults are kExitUntrusted.
void CheckFiles(const std::string& release, const Approval& approval);

// Where a device keeps the floor of a model, in the store that a release lies in; empty where it lies
// in none.
std::string FloorPath(const std::string& release, const std::string& model);

}  // namespace edge

#endif  // TRUST_APPROVAL_H_
