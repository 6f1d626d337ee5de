// What a signer said of a release: one of the two documents is the input, the others are right.
#include "fuzz.h"
#include "model/fault.h"
#include "model/manifest.h"
#include "trust/approval.h"

namespace {

constexpr char kTrusted[] =
    "alice ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILU0SYhw/XISExlrEwWYs2JYCXGmhu5+rMDzgYOg58g1\n";
const std::string kDocuments[] = {
    "{\"board\":\"rk3399\",\"bundle\":\"26a1124aa944b1bb7a54d5b40433bb38d6adca79c4a355995f475026c23e192d\",\"minimum\":2,\"model\":\"net\",\"schema\":1,\"sequence\":7}"
    "-----BEGIN SSH SIGNATURE-----\n"
    "U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgtTRJiHD9chITGWsTBZizYlgJca\n"
    "aG7n6swPOBg6DnyDUAAAAMZWRnZS1yZWxlYXNlAAAAAAAAAAZzaGE1MTIAAABTAAAAC3Nz\n"
    "aC1lZDI1NTE5AAAAQJEeITlV3U9I+S2P0HimkB5T+Uh52/hCn/ajkx3anPwONojPYi5F62\n"
    "b0lfh2aB1SJQ4UaMccsS4tcBCg2zJ6SAM=\n"
    "-----END SSH SIGNATURE-----\n",
    "{\"layers\":[{\"annotations\":{\"org.opencontainers.image.title\":\"manifest.json\"},\"digest\":\"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\",\"size\":0},{\"annotations\":{\"org.opencontainers.image.title\":\"model.so\"},\"digest\":\"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\",\"size\":0}]}",
};
constexpr const char* kNames[] = {edge::kSigned, edge::kDescription};

void WriteText(const std::string& path, const std::string& text) {
  fuzz::Write(path, reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

edge::Trust Trusted() {
  const std::string folder = fuzz::Folder();
  WriteText(folder + "/trusted", kTrusted);
  return *edge::ReadTrust(folder);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const edge::Trust trust = Trusted();
  static const std::string release = fuzz::Folder();
  if (size == 0) return 0;
  const size_t which = data[0] % 2;
  for (size_t at = 0; at < 2; ++at) WriteText(release + "/" + kNames[at], kDocuments[at]);
  fuzz::Write(release + "/" + kNames[which], data + 1, size - 1);
  fuzz::Accepts<edge::Fault>([&] {
    const edge::Approval approval = edge::Approve(release, trust);
    // Only the form of a signature is left to whoever passes it on.
    const std::string_view given = fuzz::Text(data + 1, size - 1), right = kDocuments[which];
    const size_t same = which == 0 ? right.find("-----") : right.size();
    fuzz::Must(given.substr(0, same) == right.substr(0, same));
    fuzz::Must(which == 0 || given.size() == same);
    fuzz::Must(approval.statement.sequence == 7 && approval.digests.size() == 2);
  });
  return 0;
}
