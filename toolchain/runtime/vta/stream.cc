// See stream.h.
#include "stream.h"

#include <array>
#include <cstring>

#include "fault.h"
#include "isa.h"

namespace vta {
namespace {

constexpr char kMagic[] = "VTASTRM";  // then a byte for the version
constexpr uint8_t kVersion = 1;
constexpr size_t kHeaderBytes = 48;
constexpr size_t kChecksumAt = 40;
constexpr size_t kBufferBytes = 8;
constexpr size_t kRelocationBytes = 8;

// CRC-32 as in zlib and Ethernet.
std::array<uint32_t, 256> CrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320u : 0u);
    table[byte] = value;
  }
  return table;
}

uint32_t Crc32(const uint8_t* data, size_t size) {
  static const std::array<uint32_t, 256> table = CrcTable();
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < size; ++i) crc = (crc >> 8) ^ table[(crc ^ data[i]) & 0xff];
  return ~crc;
}

// Takes numbers from the bytes one after the other. Who uses it has compared the sizes before.
class Reader {
 public:
  explicit Reader(const uint8_t* data) : next_(data) {}

  uint8_t Byte() { return *next_++; }
  uint32_t Word() {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value |= static_cast<uint32_t>(Byte()) << (8 * i);
    return value;
  }
  void Zeros(size_t bytes) {
    while (bytes-- > 0) {
      if (Byte() != 0) Fail("unused bytes of the stream's header are not zero");
    }
  }
  void Skip(size_t bytes) { next_ += bytes; }
  const uint8_t* next() const { return next_; }

 private:
  const uint8_t* next_;
};

struct Counts {
  uint32_t buffers, instructions, uops, relocations;

  uint64_t Bytes() const {
    return kHeaderBytes + uint64_t{buffers} * kBufferBytes +
           uint64_t{instructions} * kInstructionBytes + uint64_t{uops} * kUopBytes +
           uint64_t{relocations} * kRelocationBytes;
  }
};

vta_config ReadLogs(Reader* reader) {
  uint8_t log[9];
  for (uint8_t& one : log) one = reader->Byte();
  reader->Zeros(3);
  return {log[0], log[1], log[2], log[3], log[4], log[5], log[6], log[7], log[8]};
}

StreamBuffer ReadBuffer(Reader* reader, size_t number) {
  StreamBuffer buffer;
  buffer.memory = reader->Byte();
  const uint8_t direction = reader->Byte();
  const uint32_t reserved = reader->Byte() | reader->Byte();
  buffer.written = direction == 1;
  buffer.elements = reader->Word();
  if (buffer.memory >= kMemories || direction > 1 || reserved != 0) {
    Fail("buffer " + std::to_string(number) + " of the stream has no memory and direction");
  }
  return buffer;
}

void CheckMagic(const uint8_t* data, size_t size) {
  if (size < kHeaderBytes || memcmp(data, kMagic, sizeof(kMagic) - 1) != 0) {
    Fail("not a VTA stream: " + std::to_string(size) + " bytes that do not begin like one");
  }
  if (data[sizeof(kMagic) - 1] != kVersion) {
    Fail("the stream has version " + std::to_string(data[sizeof(kMagic) - 1]) +
         " of the format, not of " + std::to_string(kVersion));
  }
}

void CheckWhole(const Counts& counts, uint32_t checksum, const uint8_t* data, size_t size) {
  if (counts.Bytes() != size) {
    Fail("the stream should have " + std::to_string(counts.Bytes()) + " bytes and has " +
         std::to_string(size) + (size < counts.Bytes() ? ": it was cut" : ""));
  }
  const size_t start = kChecksumAt + sizeof(checksum);
  if (Crc32(data + start, size - start) != checksum) {
    Fail("the stream's checksum is wrong: it was damaged");
  }
}

}  // namespace

bool operator==(const vta_config& one, const vta_config& other) {
  return memcmp(&one, &other, sizeof(one)) == 0;  // bytes only, so nothing between them
}

Stream ParseStream(const uint8_t* data, size_t size) {
  CheckMagic(data, size);
  Reader reader(data + sizeof(kMagic));
  Stream stream;
  stream.encoding.revision = reader.Word();
  stream.encoding.logs = ReadLogs(&reader);
  const Counts counts = {reader.Word(), reader.Word(), reader.Word(), reader.Word()};
  const uint32_t checksum = reader.Word();
  CheckWhole(counts, checksum, data, size);
  reader.Zeros(4);
  for (uint32_t i = 0; i < counts.buffers; ++i) stream.buffers.push_back(ReadBuffer(&reader, i));
  const uint8_t* instructions = reader.next();
  reader.Skip(size_t{counts.instructions} * kInstructionBytes);
  stream.instructions.assign(instructions, reader.next());
  for (uint32_t i = 0; i < counts.uops; ++i) stream.uops.push_back(reader.Word());
  for (uint32_t i = 0; i < counts.relocations; ++i) {
    const uint32_t instruction = reader.Word();
    stream.relocations.push_back({instruction, reader.Word()});
  }
  return stream;
}

}  // namespace vta
