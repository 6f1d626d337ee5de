// See trusted.h. A line that cannot be right is refused, and with it everything: what somebody wrote
// to be trusted, or not to be, must not be something else here.
#include "trusted.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string_view>

#include "../model/fault.h"
#include "sshsig.h"

namespace edge {
namespace {

constexpr off_t kMaxBytes = 1 << 20;
constexpr int64_t kMaxNumber = (int64_t{1} << 53) - 1;
constexpr char kType[] = "ssh-ed25519";
constexpr char kNamespaces[] = "namespaces=\"";

[[noreturn]] void FailWithErrno(const std::string& path) {
  throw Fault(kExitUntrusted, std::string("cannot read the file: ") + strerror(errno), path);
}

bool IsOurs(const struct stat& status) {
  return (status.st_uid == 0 || status.st_uid == geteuid()) && (status.st_mode & 022) == 0;
}

// Reads a file that is open, if nobody else than it should be can change it.
std::string ReadOpened(int file, const std::string& path, Owner owner) {
  struct stat status;
  if (fstat(file, &status) != 0) FailWithErrno(path);
  if (owner == Owner::kOurs && !IsOurs(status)) {
    throw Fault(kExitUntrusted, "others than root and you can change this file", path);
  }
  if (!S_ISREG(status.st_mode) || status.st_size > kMaxBytes) {
    throw Fault(kExitUntrusted, "this is not a file of at most 1 MiB", path);
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(file, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) FailWithErrno(path);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  return text;
}

std::vector<std::string> WordsOf(std::string_view line) {
  std::vector<std::string> words;
  while (true) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const size_t end = std::min(line.find_first_of(" \t\r"), line.size());
    words.emplace_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

// Calls `read` with the words of each line that has any, and its place.
void ForLines(const std::string& text, const std::string& path,
              const std::function<void(const std::vector<std::string>&, const std::string&)>& read) {
  size_t number = 0, begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::vector<std::string> words = WordsOf(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (!words.empty() && words[0][0] != '#') read(words, path + ":" + std::to_string(number));
  }
}

// The option of a line that limits what its key is for; other options are not kept here.
void CheckOption(const std::string& option, const std::string& place) {
  const std::string_view prefix = kNamespaces;
  if (option.compare(0, prefix.size(), prefix) != 0 || option.back() != '"' ||
      option.size() == prefix.size()) {
    throw Fault(kExitUntrusted, "the option " + option + " is not supported by devices", place);
  }
  const std::string list = "," + option.substr(prefix.size(), option.size() - prefix.size() - 1) + ",";
  if (list.find("," + std::string(kNamespace) + ",") == std::string::npos) {
    throw Fault(kExitUntrusted, "the key is not for " + std::string(kNamespace), place);
  }
}

// NAME [namespaces="..."] ssh-ed25519 BASE64 [COMMENT]
Signer ReadSigner(const std::vector<std::string>& words, const std::string& place) {
  size_t at = 1;
  if (words.size() > at && words[at] != kType && words[at].find('=') != std::string::npos) {
    CheckOption(words[at++], place);
  }
  if (words.size() < at + 2 || words[at] != kType) {
    throw Fault(kExitUntrusted, "expected a name, ssh-ed25519, and the key", place);
  }
  return {words[0], ReadKey(words[at + 1], place)};
}

// The same, or a public key as ssh-keygen writes it.
std::string ReadRevoked(const std::vector<std::string>& words, const std::string& place) {
  if (words[0] == kType && words.size() >= 2) return ReadKey(words[1], place);
  return ReadSigner(words, place).key;
}

bool Has(const std::vector<std::string>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

void AddSigners(Trust* trust, const std::string& text, const std::string& path) {
  std::vector<std::string> known;
  ForLines(text, path, [&](const auto& words, const std::string& place) {
    const Signer signer = ReadSigner(words, place);
    if (Has(known, signer.key) || Has(trust->revoked, signer.key)) return;
    known.push_back(signer.key);
    trust->signers.push_back(signer);
  });
}

// Whether a folder has a file `trusted`, be it a link that leads nowhere.
bool AsksForSigners(const std::string& folder) {
  struct stat status;
  if (lstat((folder + "/trusted").c_str(), &status) == 0) return true;
  if (errno != ENOENT) FailWithErrno(folder + "/trusted");
  return false;
}

void CheckFolder(const std::string& folder) {
  struct stat status;
  if (stat(folder.c_str(), &status) != 0) FailWithErrno(folder);
  if (!IsOurs(status)) {
    throw Fault(kExitUntrusted, "others than root and you can change this folder", folder);
  }
}

// A board's name on a line of its own.
std::string BoardFrom(const std::optional<std::string>& text, const std::string& path) {
  if (!text) return "";
  const std::vector<std::string> words = WordsOf(text->substr(0, text->find('\n')));
  const bool one_line = text->find('\n') >= text->size() - 1;
  if (words.size() != 1 || !one_line) throw Fault(kExitUntrusted, "expected a board's name", path);
  return words[0];
}

}  // namespace

std::optional<std::string> ReadIfThere(const std::string& path, Owner owner) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0 && errno == ENOENT) return {};
  if (file < 0) FailWithErrno(path);
  try {
    std::string text = ReadOpened(file, path, owner);
    close(file);
    return text;
  } catch (...) {
    close(file);
    throw;
  }
}

std::optional<int64_t> ReadNumber(const std::string& path, Owner owner) {
  const std::optional<std::string> text = ReadIfThere(path, owner);
  if (!text) return {};
  int64_t number = 0;
  size_t digits = 0;
  for (; digits < text->size() && (*text)[digits] >= '0' && (*text)[digits] <= '9'; ++digits) {
    number = number * 10 + ((*text)[digits] - '0');
    if (number > kMaxNumber) throw Fault(kExitUntrusted, "the number is too large", path);
  }
  const bool ends = digits == text->size() || (digits + 1 == text->size() && text->back() == '\n');
  if (digits == 0 || !ends) throw Fault(kExitUntrusted, "expected a number", path);
  return number;
}

std::optional<Trust> ReadTrust(const std::string& folder) {
  const std::string path = folder + "/trusted";
  const auto read = [&](const std::string& name) {
    return ReadIfThere(folder + "/" + name, Owner::kOurs);
  };
  if (!AsksForSigners(folder)) return {};
  CheckFolder(folder);
  const std::optional<std::string> trusted = read("trusted");
  if (!trusted) throw Fault(kExitUntrusted, "the target of the link does not exist", path);
  Trust trust;
  trust.folder = folder;
  const std::string revoked = folder + "/revoked";
  ForLines(read("revoked").value_or(""), revoked, [&](const auto& words, const std::string& place) {
    trust.revoked.push_back(ReadRevoked(words, place));
  });
  AddSigners(&trust, *trusted, path);
  trust.board = BoardFrom(read("board"), folder + "/board");
  trust.threshold = ReadNumber(folder + "/threshold", Owner::kOurs).value_or(1);
  if (trust.threshold < 1) {
    throw Fault(kExitUntrusted, "the number of signers must be at least 1", folder + "/threshold");
  }
  return trust;
}

}  // namespace edge
