// See verify.h.
#include "verify.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "../model/fault.h"
#include "../model/files.h"
#include "../model/fixed_file.h"
#include "../model/stage.h"
#include "../trust/approval.h"

namespace runner {
namespace {

namespace json = tvm::ffi::json;
using edge::Approval;
using edge::Fault;
using tvm::ffi::String;

std::string Canonical(const std::string& path) {
  const std::unique_ptr<char, decltype(&free)> found(realpath(path.c_str(), nullptr), &free);
  if (!found) throw Fault(edge::kExitInput, std::string("no release: ") + strerror(errno), path);
  return found.get();
}

Approval Verified(const std::string& release, const std::string& folder, const std::string& with) {
  const auto trust = edge::ReadTrust(folder);
  if (!trust) {
    throw Fault(edge::kExitUntrusted, "this device trusts no signing key", folder + "/trusted");
  }
  Approval approval = edge::Approve(release, *trust, with);
  edge::CheckFiles(release, approval);
  const edge::Manifest manifest = edge::ReadManifest(release, approval.digests);
  edge::CheckAgrees(approval.statement, manifest);
  // The store never changes a blob. So processes can share the file, and still compute its digest.
  if (!edge::FloorPath(release, approval.statement.model).empty()) edge::EnableVerity(manifest.params);
  return approval;
}

// A floor above the release that says so would stop the device at its next start.
void Raise(const std::string& release, int64_t wanted, Approval* approval) {
  const auto& statement = approval->statement;
  const std::string path = edge::FloorPath(release, statement.model);
  if (path.empty()) throw Fault(edge::kExitUsage, "the release is not in a store", release);
  if (wanted > statement.sequence) {
    throw Fault(edge::kExitFloor, "the release has sequence " + std::to_string(statement.sequence) +
                                      ", and a floor of " + std::to_string(wanted) +
                                      " would exclude it");
  }
  const int64_t floor = std::max(wanted, statement.minimum);
  if (floor <= approval->floor) return;
  const std::string folder = path.substr(0, path.rfind('/'));
  if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) {
    throw Fault(edge::kExitUsage, std::string("cannot make the folder: ") + strerror(errno), folder);
  }
  edge::WriteAtomically(path, {std::to_string(floor) + "\n"});
  approval->floor = floor;
}

std::string Told(const Approval& approval) {
  const auto& statement = approval.statement;
  json::Array signers;
  for (const std::string& name : approval.signers) signers.push_back(String(name));
  return std::string(json::Stringify(json::Object{{String("bundle"), String(statement.bundle)},
                                                  {String("model"), String(statement.model)},
                                                  {String("board"), String(statement.board)},
                                                  {String("sequence"), statement.sequence},
                                                  {String("minimum"), statement.minimum},
                                                  {String("floor"), approval.floor},
                                                  {String("signers"), signers}}));
}

}  // namespace

std::string Verify(const Options& options) {
  edge::EnterStage(edge::kExitUntrusted, "verifying the release", options.verify);
  const std::string release = Canonical(options.verify);
  Approval approval =
      Verified(release, options.trust.empty() ? edge::kTrustFolder : options.trust, options.with);
  if (options.floor >= 0) Raise(release, options.floor, &approval);
  return Told(approval);
}

}  // namespace runner
