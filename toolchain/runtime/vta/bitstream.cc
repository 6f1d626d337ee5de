// See bitstream.h.
#include "bitstream.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "fault.h"

namespace vta {
namespace {

constexpr char kVariable[] = "EDGE_VTA_BITSTREAM";
constexpr char kUsualFolder[] = "/lib/firmware/edge-toolchain/";
constexpr char kFirmwareName[] = "edge-vta.bin";
constexpr char kManager[] = "/sys/class/fpga_manager/fpga0";
constexpr char kDevcfg[] = "/sys/devices/soc0/amba/f8007000.devcfg";
// The word that every bitstream has near its start, most significant byte first and last.
constexpr char kSyncBig[] = "\xaa\x99\x55\x66";
constexpr char kSyncLittle[] = "\x66\x55\x99\xaa";
constexpr size_t kSyncWithin = 4096;
// What a .bit file begins with: a field of nine bytes, and the number 1.
constexpr char kBitStart[] = "\x00\x09\x0f\xf0\x0f\xf0\x0f\xf0\x0f\xf0\x00\x00\x01";
constexpr size_t kBitStartBytes = sizeof(kBitStart) - 1;

// Takes the fields of a .bit header one after the other.
class BitHeader {
 public:
  BitHeader(const std::string& file, const std::string& path)
      : file_(file), path_(path), at_(kBitStartBytes) {}

  // The text of the field with this letter, without its final zero.
  std::string Text(char letter) {
    Letter(letter);
    const std::string text = Take(Number(2));
    return text.substr(0, text.find('\0'));
  }

  std::string Data() {
    Letter('e');
    return Take(Number(4));
  }

 private:
  void Letter(char letter) {
    if (Take(1)[0] != letter) Fail(path_ + ": the header of a .bit file is damaged");
  }

  size_t Number(size_t bytes) {
    size_t value = 0;
    for (const char byte : Take(bytes)) value = value << 8 | static_cast<unsigned char>(byte);
    return value;
  }

  std::string Take(size_t bytes) {
    if (bytes > file_.size() - at_) Fail(path_ + ": the .bit file was cut");
    at_ += bytes;
    return file_.substr(at_ - bytes, bytes);
  }

  const std::string& file_;
  const std::string& path_;
  size_t at_;
};

bool HasSync(const std::string& words, const char* sync) {
  const size_t at = words.find(std::string(sync, 4));
  return at < kSyncWithin && at % 4 == 0;
}

// The kernel takes 32-bit words with the least significant byte first.
std::string InKernelOrder(std::string words, const std::string& path) {
  if (words.size() % 4 == 0 && HasSync(words, kSyncLittle)) return words;
  if (words.size() % 4 != 0 || !HasSync(words, kSyncBig)) {
    Fail(path + " is not a bitstream: it has no synchronisation word near its start");
  }
  for (size_t i = 0; i < words.size(); i += 4) {
    std::swap(words[i], words[i + 3]);
    std::swap(words[i + 1], words[i + 2]);
  }
  return words;
}

// The configuration's name within a file's name, such as 1x16_i8w8a32_15_15_18_17; empty if none.
std::string ConfigurationIn(const std::string& file) {
  for (size_t at = 0; at < file.size(); ++at) {
    if (file[at] < '0' || file[at] > '9') continue;  // sscanf takes the dash of a prefix for a sign
    unsigned n[9];
    int end = 0;
    const int found =
        sscanf(file.c_str() + at, "%ux%u_i%uw%ua%u_%u_%u_%u_%u%n", &n[0], &n[1], &n[2], &n[3],
               &n[4], &n[5], &n[6], &n[7], &n[8], &end);
    if (found == 9) return file.substr(at, static_cast<size_t>(end));
  }
  return "";
}

bool Exists(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0;
}

void ProgramByManager(const System& system, const std::string& words) {
  const std::string manager = system.Path(kManager);
  mkdir(system.Path("/lib/firmware").c_str(), 0755);  // if it fails, so does writing into it
  WriteText(system.Path(std::string("/lib/firmware/") + kFirmwareName), words, true);
  if (Exists(manager + "/flags")) WriteText(manager + "/flags", "0");  // a whole bitstream
  std::string cause;
  try {
    WriteText(manager + "/firmware", kFirmwareName);
  } catch (const Fault& fault) {
    cause = std::string("; ") + fault.what();
  }
  const std::string state = ReadLine(manager + "/state").value_or("unknown");
  if (cause.empty() && state == "operating") return;
  Fail("the FPGA did not take the bitstream: its state is \"" + state + "\"" + cause +
       "; see dmesg");
}

void ProgramByDevcfg(const System& system, const std::string& words) {
  const std::string devcfg = system.Path(kDevcfg);
  const std::string partial = devcfg + "/is_partial_bitstream";
  if (Exists(partial)) WriteText(partial, "0");
  WriteText(system.Path("/dev/xdevcfg"), words);
  const std::string done = ReadLine(devcfg + "/prog_done").value_or("unknown");
  if (done != "1") Fail("the FPGA did not take the bitstream: prog_done is " + done);
}

}  // namespace

std::string UsualBitstream(const System& system, const std::string& configuration) {
  const char* named = std::getenv(kVariable);
  if (named != nullptr && *named != '\0') return named;
  const std::string path = kUsualFolder + configuration;
  for (const char* ending : {".bit", ".bin"}) {
    if (access(system.Path(path + ending).c_str(), R_OK) == 0) return system.Path(path + ending);
  }
  Fail("there is no bitstream of VTA on this board: copy it to " + path + ".bit, or name one in " +
       kVariable + " or by tvm.contrib.vta.init");
}

Bitstream ReadBitstream(const std::string& path) {
  const std::optional<std::string> file = ReadText(path);
  if (!file) Fail("cannot read the bitstream " + path + ": " + strerror(errno));
  Bitstream bitstream;
  if (file->compare(0, kBitStartBytes, std::string(kBitStart, kBitStartBytes)) != 0) {
    bitstream.words = InKernelOrder(*file, path);
    return bitstream;
  }
  BitHeader header(*file, path);
  header.Text('a');  // the design's name, which is the same for all configurations
  bitstream.part = header.Text('b');
  header.Text('c');  // date and time
  header.Text('d');
  bitstream.words = InKernelOrder(header.Data(), path);
  return bitstream;
}

static void CheckPart(const Bitstream& bitstream, const std::string& path, const ZynqBoard& board) {
  if (bitstream.part.empty()) return;
  std::string known;
  for (const std::string& part : board.parts) {
    if (bitstream.part.find(part) != std::string::npos) return;
    known += (known.empty() ? "" : " or ") + part;
  }
  Fail(path + " is for the FPGA " + bitstream.part + "; this board has " + known);
}

void CheckBitstream(const Bitstream& bitstream, const std::string& path, const ZynqBoard& board,
                    const std::string& configuration) {
  CheckPart(bitstream, path, board);
  const std::string told = ConfigurationIn(path.substr(path.rfind('/') + 1));
  if (!told.empty() && told != configuration) {
    Fail(path + " is of configuration " + told + ", not of " + configuration);
  }
}

void ProgramFpga(const System& system, const Bitstream& bitstream) {
  if (Exists(system.Path(kManager) + "/firmware")) {
    ProgramByManager(system, bitstream.words);
  } else if (Exists(system.Path("/dev/xdevcfg"))) {
    ProgramByDevcfg(system, bitstream.words);
  } else {
    Fail("this kernel cannot program the FPGA: it has neither " + std::string(kManager) +
         "/firmware nor /dev/xdevcfg; PYNQ's kernels have one of them");
  }
}

}  // namespace vta
