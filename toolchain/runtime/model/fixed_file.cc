// See fixed_file.h. docs/decisions/0012 explains why this is safe, and against whom.
#include "fixed_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace edge {
namespace {

// Of <linux/fsverity.h>, which the headers of some boards lack.
struct VerityDigest {
  uint16_t algorithm, size;
  uint8_t bytes[64];
};
struct VerityOptions {
  uint32_t version, algorithm, block_size, salt_size;
  uint64_t salt;
  uint32_t signature_size, reserved;
  uint64_t signature, more[11];
};
static_assert(sizeof(VerityOptions) == 128, "as the kernel has it");
constexpr unsigned long kEnableVerity = 0x40806685, kMeasureVerity = 0xC0046686;
constexpr uint32_t kSha256OfVerity = 1, kBlockOfVerity = 4096;
constexpr unsigned long kExt4 = 0xEF53, kBtrfs = 0x9123683E, kF2fs = 0xF2F52010;

constexpr int kFixedSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK;
constexpr size_t kFillPiece = 1 << 18;
constexpr int kMostLinks = 1 << 16;   // of the descriptors of all processes that are looked at
constexpr int kMostHashed = 2;        // files of others: a wrong one costs the time of its digest
constexpr int kWaits = 5000;          // for another process that makes the file: ten seconds
constexpr long kWait_ns = 2'000'000;

// A descriptor of some process that has the name of a file in memory.
struct Offer {
  long process;
  int number;

  std::string path() const {
    return "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
  }
};

std::string LinkTo(const std::string& path) {
  char text[128];
  const ssize_t size = readlink(path.c_str(), text, sizeof text);
  return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
}

// The numbers that the entries of a folder are; none where it may not be read.
std::vector<long> NumbersIn(const std::string& folder, int* left) {
  std::vector<long> numbers;
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return numbers;
  while (const dirent* entry = *left > 0 ? readdir(entries) : nullptr) {
    --*left;
    char* end = nullptr;
    const long number = strtol(entry->d_name, &end, 10);
    if (end != entry->d_name && *end == '\0') numbers.push_back(number);
  }
  closedir(entries);
  return numbers;
}

// The kernel lets a process read only the descriptors of its own user's processes.
std::vector<Offer> FindOffers(const std::string& link, int own) {
  std::vector<Offer> offers;
  int left = kMostLinks;
  for (const long process : NumbersIn("/proc", &left)) {
    for (const long number : NumbersIn("/proc/" + std::to_string(process) + "/fd", &left)) {
      const Offer offer{process, static_cast<int>(number)};
      const bool is_own = process == getpid() && number == own;
      if (!is_own && LinkTo(offer.path()) == link) offers.push_back(offer);
    }
  }
  return offers;
}

bool IsSealed(int file) {
  const int seals = fcntl(file, F_GET_SEALS);  // fails for all but files in memory
  return seals >= 0 && (seals & kFixedSeals) == kFixedSeals;
}

bool IsBegun(int file) {
  struct stat status;
  return fstat(file, &status) == 0 && status.st_blocks > 0;
}

// Waits while another process fills its file. Of two that have not begun, the one with the lower
// number does: so they never wait for each other.
bool WaitUntilSealed(int file, const Offer& offer, const std::string& link, int own) {
  const bool is_first = offer.process < getpid() || (offer.process == getpid() && offer.number < own);
  for (int waits = 0; waits < kWaits; ++waits) {
    if (IsSealed(file)) return true;
    if (!is_first && !IsBegun(file)) return false;
    if (LinkTo(offer.path()) != link) return IsSealed(file);  // its process has ended
    const timespec pause{0, kWait_ns};
    nanosleep(&pause, nullptr);
  }
  return false;
}

bool HasSize(int file, size_t size) {
  struct stat status;
  return fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
         status.st_size == static_cast<off_t>(size);
}

// A file of another process that has these bytes; none if there is no such.
Descriptor FindShared(const std::string& link, size_t size, int own,
                      const std::function<bool(int)>& has_digest) {
  int hashed = 0;
  for (const Offer& offer : FindOffers(link, own)) {
    Descriptor file(open(offer.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!HasSize(file.get(), size) || !WaitUntilSealed(file.get(), offer, link, own)) continue;
    if (has_digest(file.get())) return file;
    if (++hashed == kMostHashed) break;
  }
  return Descriptor();
}

// Asked of the kernel itself: the C library of some boards is older than this call.
Descriptor SealableFile(const std::string& name) {
  constexpr unsigned kCloexec = 1, kAllowSealing = 2, kNoExecution = 8;
  for (const unsigned flags : {kCloexec | kAllowSealing | kNoExecution, kCloexec | kAllowSealing}) {
    const long number = syscall(SYS_memfd_create, name.c_str(), flags);
    if (number >= 0) return Descriptor(static_cast<int>(number));
    if (errno != EINVAL) break;  // of a kernel that does not know of execution
  }
  return Descriptor();
}

// Fills a file in memory with the bytes of another, and seals it.
bool FillAndSeal(int target, int file, size_t size) {
  std::vector<char> piece(kFillPiece);
  for (size_t done = 0; done < size;) {
    const ssize_t got = pread(file, piece.data(), kFillPiece, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;  // the rest stays zero, and the digest tells
    for (ssize_t written = 0; written < got;) {
      const ssize_t count = pwrite(target, piece.data() + written, static_cast<size_t>(got - written),
                                   static_cast<off_t>(done) + written);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      written += count;
    }
    done += static_cast<size_t>(got);
  }
  return fcntl(target, F_ADD_SEALS, kFixedSeals | F_SEAL_SEAL) == 0;
}

}  // namespace

const char* NameOf(Guard guard) {
  switch (guard) {
    case Guard::kNothing: return "file";
    case Guard::kCopy: return "copy";
    case Guard::kVerity: return "fs-verity";
    case Guard::kSealed: return "sealed";
    case Guard::kShared: return "shared";
  }
  return "";
}

bool HasVerity(int file) {
  struct statfs system;
  VerityDigest digest{0, sizeof digest.bytes, {}};
  if (fstatfs(file, &system) != 0) return false;
  // A file system of a user's process may answer anything; the kernel says that it is one.
  const auto type = static_cast<unsigned long>(system.f_type) & 0xFFFFFFFF;
  if (type != kExt4 && type != kBtrfs && type != kF2fs) return false;
  return ioctl(file, kMeasureVerity, &digest) == 0;
}

void EnableVerity(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  VerityOptions options{};
  options.version = 1;
  options.algorithm = kSha256OfVerity;
  options.block_size = kBlockOfVerity;
  ioctl(file.get(), kEnableVerity, &options);  // most file systems cannot
}

FixedFile OpenFixed(int file, size_t size, const std::string& sha256,
                    const std::function<bool(int)>& has_digest) {
  if (HasVerity(file)) return {Descriptor(dup(file)), Guard::kVerity};
  const std::string name = "edge-" + sha256;
  Descriptor own = SealableFile(name);
  // The size tells others that this file will have the bytes.
  if (own.get() < 0 || ftruncate(own.get(), static_cast<off_t>(size)) != 0) return FixedFile();
  Descriptor shared = FindShared("/memfd:" + name + " (deleted)", size, own.get(), has_digest);
  if (shared.get() >= 0) return {std::move(shared), Guard::kShared};
  if (!FillAndSeal(own.get(), file, size)) return FixedFile();
  return {std::move(own), Guard::kSealed};
}

}  // namespace edge
