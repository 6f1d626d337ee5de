// See approval.h.
#include "approval.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "../crypto/crypto.h"
#include "../model/fault.h"
#include "../model/files.h"
#include "../model/json.h"
#include "sshsig.h"

namespace edge {
namespace {

constexpr size_t kMaxName = 128;
constexpr int64_t kMaxSequence = (int64_t{1} << 53) - 1;  // what JSON has everywhere
constexpr size_t kHexDigits = 64;
constexpr char kAlgorithm[] = "sha256:";
constexpr char kManifest[] = "manifest.json";
constexpr char kArmour[] = "-----BEGIN SSH SIGNATURE-----";
constexpr char kTitle[] = "org.opencontainers.image.title";

[[noreturn]] void Refuse(const std::string& what, const std::string& file) {
  throw Fault(kExitUntrusted, what, file);
}

// A small file, which must be there.
std::string ReadDocument(const std::string& path) {
  const std::optional<std::string> text = ReadIfThere(path, Owner::kAnybody);
  if (!text) Refuse("this device accepts only signed releases, but this file is missing", path);
  return *text;
}

bool IsDigest(const std::string& text) {
  return text.size() == kHexDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// A name that is one of a file, too: letters, digits, and . _ - after the first.
bool IsName(const std::string& text) {
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  return !text.empty() && text.size() <= kMaxName && text.find_first_of(kLetters) == 0 &&
         text.find_first_not_of(std::string(kLetters) + "._-") == std::string::npos;
}

std::string Name(const JsonNode& node) {
  const std::string name = node.Text();
  if (!IsName(name)) node.Fail("is not a valid name");
  return name;
}

int64_t Sequence(const JsonNode& node) {
  const int64_t number = node.Integer();
  if (number < 1 || number > kMaxSequence) node.Fail("is not a number from 1 to 2^53 - 1");
  return number;
}

Statement ReadStatement(const std::string& text, const std::string& path) {
  const JsonNode root = JsonNode::ParseObject(text, path);
  const std::set<std::string> known = {"board", "bundle", "minimum", "model", "schema", "sequence"};
  const std::vector<std::string> keys = root.Keys();
  for (const std::string& key : keys) {
    if (known.count(key) == 0) root.Get(key).Fail("is unknown to this device");
  }
  // Each key is before a colon, and no valid name or digest has one. A key that occurs twice has two
  // values, and readers differ in which of them they take.
  if (static_cast<size_t>(std::count(text.begin(), text.end(), ':')) != keys.size()) {
    Refuse("a key occurs twice in the statement", path);
  }
  if (root.Get("schema").Integer() != 1) root.Get("schema").Fail("is unknown to this device");
  Statement statement;
  statement.bundle = root.Get("bundle").Text();
  if (!IsDigest(statement.bundle)) root.Get("bundle").Fail("is not a digest");
  statement.model = Name(root.Get("model"));
  statement.board = Name(root.Get("board"));
  statement.sequence = Sequence(root.Get("sequence"));
  if (root.Has("minimum")) statement.minimum = Sequence(root.Get("minimum"));
  if (statement.minimum > statement.sequence) root.Get("minimum").Fail("is above its sequence");
  return statement;
}

const Signer* Find(const std::vector<Signer>& signers, const std::string& key) {
  for (const Signer& signer : signers) {
    if (signer.key == key) return &signer;
  }
  return nullptr;
}

// Those who signed, each once. What others signed, or signed wrongly, does not count.
std::vector<std::string> SignersOf(const std::string& statement, const std::string& signatures,
                                   const Trust& trust, const std::string& path) {
  std::map<std::string, std::string> names;
  std::string reasons;
  for (const Signature& signature : ReadSignatures(signatures, path)) {
    const Signer* signer = Find(trust.signers, signature.key);
    if (signer == nullptr) {
      const auto& revoked = trust.revoked;
      const bool was = std::find(revoked.begin(), revoked.end(), signature.key) != revoked.end();
      reasons += was ? "; a revoked key signed it" : "; a key that this device does not trust signed it";
    } else if (!Holds(signature, statement)) {
      reasons += "; the signature of " + signer->name + " does not match";
    } else {
      names.emplace(signer->key, signer->name);
    }
  }
  if (names.size() < static_cast<size_t>(trust.threshold)) {
    Refuse(std::to_string(names.size()) + " of " + std::to_string(trust.threshold) +
               " signatures that this device asks for" + reasons,
           path);
  }
  std::vector<std::string> signers;
  for (const auto& [key, name] : names) signers.push_back(name);
  return signers;
}

// The digest and the size of each file that a bundle has.
Digests ReadDigests(const std::string& text, const std::string& path) {
  Digests digests;
  for (const JsonNode& layer : JsonNode::ParseObject(text, path).Get("layers").Items()) {
    const JsonNode title = layer.Get("annotations").Get(kTitle);
    const std::string digest = layer.Get("digest").Text();
    const std::string hex = digest.substr(std::min(digest.size(), sizeof(kAlgorithm) - 1));
    if (digest != kAlgorithm + hex || !IsDigest(hex)) layer.Get("digest").Fail("is not a digest");
    if (!IsName(title.Text())) title.Fail("is not a file name");
    const int64_t size = layer.Get("size").Integer();
    if (size < 0) layer.Get("size").Fail("must not be negative");
    const FileDigest file{hex, static_cast<uint64_t>(size)};
    if (!digests.emplace(title.Text(), file).second) title.Fail("occurs twice");
  }
  return digests;
}

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// A store's folder of a release is called as its bundle.
void CheckPlace(const std::string& release, const Statement& statement) {
  const std::string name = BaseName(release);
  if (IsDigest(name) && name != statement.bundle) {
    Refuse("the statement is about another release: " + statement.bundle, release);
  }
}

// Gigabytes that somebody has put in place of a file are refused without reading them.
void CheckSize(const std::string& path, uint64_t size) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;  // said when it is opened
  if (static_cast<uint64_t>(status.st_size) == size) return;
  Refuse("the file has " + std::to_string(status.st_size) + " bytes, and was signed with " +
             std::to_string(size),
         path);
}

int64_t FloorOf(const std::string& release, const std::string& model,
                const Trust& trust) {
  const std::string fixed = trust.folder + "/floors/" + model;
  const std::string own = FloorPath(release, model);
  const int64_t raised = own.empty() ? 0 : ReadNumber(own, Owner::kAnybody).value_or(0);
  return std::max(raised, ReadNumber(fixed, Owner::kOurs).value_or(0));
}

Approval Approved(const std::string& release, const Trust& trust, const std::string& path) {
  const std::string text = ReadDocument(path);
  const size_t end = text.find(kArmour);
  if (end == std::string::npos) Refuse("there is no signature", path);
  const std::string statement = text.substr(0, end);
  const std::string description = ReadDocument(release + "/" + kDescription);
  Approval approval;
  approval.signers = SignersOf(statement, text.substr(end), trust, path);
  approval.statement = ReadStatement(statement, path);
  const Statement& said = approval.statement;
  CheckPlace(release, said);
  if (HexSha256(description) != said.bundle) {
    Refuse("this is not the release that was signed", release + "/" + kDescription);
  }
  if (!trust.board.empty() && said.board != trust.board) {
    Refuse("the release is for " + said.board + ", but this device is " + trust.board, path);
  }
  approval.floor = FloorOf(release, said.model, trust);
  if (said.sequence < approval.floor) {
    Refuse("the release has sequence " + std::to_string(said.sequence) + " of " + said.model +
               ", but this device accepts none below " + std::to_string(approval.floor),
           path);
  }
  approval.digests = ReadDigests(description, release + "/" + kDescription);
  if (approval.digests.count(kManifest) == 0) {
    Refuse("its manifest is not among the signed files", path);
  }
  return approval;
}

}  // namespace

Approval Approve(const std::string& release, const Trust& trust, const std::string& with) {
  try {
    return Approved(release, trust, with.empty() ? release + "/" + kSigned : with);
  } catch (const Fault& fault) {  // whatever is wrong with its documents
    throw Fault(kExitUntrusted, fault.what(), fault.file());
  }
}

void CheckAgrees(const Statement& statement, const Manifest& manifest) {
  if (statement.model == manifest.name && statement.board == manifest.board) return;
  Refuse("the statement is about " + statement.model + " for " + statement.board +
             ", and this is " + manifest.name + " for " + manifest.board,
         manifest.path);
}

void CheckFiles(const std::string& release, const Approval& approval) {
  for (const auto& [name, digest] : approval.digests) {
    const std::string path = release + "/" + name;
    CheckSize(path, digest.size);
    try {
      const MappedFile file(path);
      if (HexSha256(file.bytes()) == digest.sha256) continue;
    } catch (const Fault& fault) {
      throw Fault(kExitUntrusted, fault.what(), fault.file());
    }
    Refuse("the file is not the one that was signed", path);
  }
}

std::string FloorPath(const std::string& release, const std::string& model) {
  const std::string releases = release.substr(0, std::max<size_t>(release.rfind('/'), 1));
  if (!IsDigest(BaseName(release)) || BaseName(releases) != "releases") return "";
  return releases.substr(0, releases.size() - BaseName(releases).size()) + "floors/" + model;
}

}  // namespace edge
