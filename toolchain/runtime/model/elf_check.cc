// See elf_check.h.
#include "elf_check.h"

#include <elf.h>
#include <link.h>

#include <cstring>
#include <string_view>

#include "fault.h"
#include "files.h"

namespace edge {
namespace {

using Header = ElfW(Ehdr);
using Segment = ElfW(Phdr);

constexpr unsigned char kOurClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
#if defined(__x86_64__)
constexpr unsigned kOurMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr unsigned kOurMachine = EM_AARCH64;
#elif defined(__arm__)
constexpr unsigned kOurMachine = EM_ARM;
#elif defined(__riscv)
constexpr unsigned kOurMachine = EM_RISCV;
#endif

std::string ElfMachineName(unsigned machine) {
  switch (machine) {
    case EM_X86_64: return "x86_64";
    case EM_386: return "i386";
    case EM_AARCH64: return "aarch64";
    case EM_ARM: return "arm";
    case EM_RISCV: return "riscv";
    default: return "ELF machine " + std::to_string(machine);
  }
}

// Both word sizes have the machine at the same place, so that it can be told for either.
Header ReadHeader(const MappedFile& file) {
  const std::string_view bytes = file.bytes();
  if (bytes.size() < sizeof(Header) || memcmp(bytes.data(), ELFMAG, SELFMAG) != 0) {
    throw Fault(kExitLoad, "the library is not an ELF file", file.path());
  }
  Header header;
  memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

bool FitsInFile(uint64_t offset, uint64_t size, const MappedFile& file) {
  return offset <= file.bytes().size() && size <= file.bytes().size() - offset;
}

void CheckSegments(const Header& header, const MappedFile& file) {
  const uint64_t table_size = static_cast<uint64_t>(header.e_phnum) * sizeof(Segment);
  bool whole =
      header.e_phentsize == sizeof(Segment) && FitsInFile(header.e_phoff, table_size, file);
  for (unsigned i = 0; whole && i < header.e_phnum; ++i) {
    Segment segment;
    memcpy(&segment, file.bytes().data() + header.e_phoff + i * sizeof(Segment), sizeof(segment));
    whole = segment.p_type != PT_LOAD || FitsInFile(segment.p_offset, segment.p_filesz, file);
  }
  if (!whole) throw Fault(kExitLoad, "the library is damaged or truncated", file.path());
}

// Older toolchains wrote recurrent kernels whose tasks wait for each other; see ../threads/pool.h.
void CheckKernels(const MappedFile& file) {
  if (file.bytes().find("__TVMBackendParallelBarrier") == std::string_view::npos) return;
  throw Fault(kExitLoad, "an older toolchain built this release: build it again", file.path());
}

}  // namespace

void CheckLibraryFile(const std::string& path) {
  const MappedFile library(path);
  const Header theirs = ReadHeader(library);
  if (theirs.e_machine != kOurMachine || theirs.e_ident[EI_CLASS] != kOurClass ||
      theirs.e_ident[EI_DATA] != ELFDATA2LSB) {
    throw Fault(kExitLoad,
                "the library is for " + ElfMachineName(theirs.e_machine) + ", this program for " +
                    ElfMachineName(kOurMachine),
                path);
  }
  if (theirs.e_type != ET_DYN) throw Fault(kExitLoad, "the library is not a shared one", path);
  CheckSegments(theirs, library);
  CheckKernels(library);
}

}  // namespace edge
