// WAV files and raw samples: checks, and samples as numbers from -1 to 1.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "sounds.h"

namespace sounds {
namespace {

constexpr size_t kHeader = 12, kChunkHeader = 8, kShortFormat = 16, kLongFormat = 40;
constexpr uint32_t kPcm = 1, kIeeeFloat = 3, kExtensible = 0xFFFE;
constexpr uint32_t kUnknownSize = 0xFFFFFFFF;  // of a file that was written to a pipe
// What follows the number of the encoding in a WAVE_FORMAT_EXTENSIBLE.
constexpr uint8_t kSubformat[] = {0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71};

uint32_t Number16(const uint8_t* at) { return at[0] | static_cast<uint32_t>(at[1]) << 8; }

uint32_t Number32(const uint8_t* at) { return Number16(at) | Number16(at + 2) << 16; }

bool Is(const uint8_t* at, const char* name) { return memcmp(at, name, 4) == 0; }

size_t BytesOf(int32_t encoding) {
  constexpr size_t kBytes[] = {1, 2, 3, 4, 4, 8};
  return kBytes[encoding];
}

// A part of the file, which lies in it.
struct Chunk {
  const uint8_t* data = nullptr;
  size_t size = 0;
};

bool FindEncoding(uint32_t number, uint32_t bits, int32_t* encoding) {
  struct Known {
    uint32_t number, bits;
    int32_t encoding;
  };
  constexpr Known kKnown[] = {{kPcm, 8, kUnsigned8},  {kPcm, 16, kSigned16},           {kPcm, 24, kSigned24},
                              {kPcm, 32, kSigned32}, {kIeeeFloat, 32, kFloat32Bits}, {kIeeeFloat, 64, kFloat64Bits}};
  for (const Known& known : kKnown) {
    if (known.number != number || known.bits != bits) continue;
    *encoding = known.encoding;
    return true;
  }
  return false;
}

bool ReadFormat(const Chunk& chunk, Samples* samples, Reason* reason) {
  if (chunk.size < kShortFormat) return reason->Is("the WAV file's chunk `fmt ` has %zu bytes, not 16 or more", chunk.size);
  uint32_t number = Number16(chunk.data);
  const uint32_t channels = Number16(chunk.data + 2), rate = Number32(chunk.data + 4);
  const uint32_t block = Number16(chunk.data + 12), bits = Number16(chunk.data + 14);
  if (number == kExtensible) {
    if (chunk.size < kLongFormat || memcmp(chunk.data + 26, kSubformat, sizeof kSubformat) != 0) {
      return reason->Is("the WAV file has an unknown subformat");
    }
    number = Number16(chunk.data + 24);
  }
  if (!FindEncoding(number, bits, &samples->encoding)) {
    return reason->Is("the WAV file has samples of format %u with %u bits; PCM of 8, 16, 24 or 32 bits and floats of "
                      "32 or 64 are possible", number, bits);
  }
  if (channels < 1 || channels > kMostChannels) {
    return reason->Is("the WAV file has %u channels; 1 to %d are possible", channels, kMostChannels);
  }
  if (rate < 1 || rate > kHighestRate) return reason->Is("the WAV file has a sample rate of %u Hz", rate);
  if (block != channels * BytesOf(samples->encoding)) {
    return reason->Is("the WAV file has blocks of %u bytes for %u channels of %u bits", block, channels, bits);
  }
  samples->channels = static_cast<int32_t>(channels);
  samples->rate = static_cast<int32_t>(rate);
  return true;
}

// Finds the chunks `fmt ` and `data`; what follows the data is not read.
bool FindChunks(const uint8_t* data, size_t bytes, Chunk* format, Chunk* content, Reason* reason) {
  if (bytes < kHeader || !Is(data, "RIFF") || !Is(data + 8, "WAVE")) {
    return reason->Is("the sound is not a WAV file: it does not begin with RIFF and WAVE");
  }
  for (size_t at = kHeader; bytes - at >= kChunkHeader;) {
    const uint32_t size = Number32(data + at + 4);
    const size_t left = bytes - at - kChunkHeader;
    const bool is_content = Is(data + at, "data");
    if (is_content && size == kUnknownSize) {
      *content = {data + at + kChunkHeader, left};
      return format->data != nullptr || reason->Is("the WAV file has no chunk `fmt ` before its data");
    }
    if (size > left) {
      return reason->Is("the WAV file is truncated: its chunk `%.4s` has %u bytes, and the file %zu more",
                        is_content ? "data" : Is(data + at, "fmt ") ? "fmt " : "....", size, left);
    }
    if (is_content) {
      *content = {data + at + kChunkHeader, size};
      return format->data != nullptr || reason->Is("the WAV file has no chunk `fmt ` before its data");
    }
    if (Is(data + at, "fmt ")) *format = {data + at + kChunkHeader, size};
    const size_t whole = size + (size & 1);  // chunks have an even size
    if (whole > left) break;
    at += kChunkHeader + whole;
  }
  return reason->Is("the WAV file has no chunk `data`");
}

bool Divide(const Chunk& content, Samples* samples, Reason* reason) {
  const size_t block = static_cast<size_t>(samples->channels) * BytesOf(samples->encoding);
  if (content.size == 0) return reason->Is("the sound is empty");
  if (content.size % block != 0) {
    return reason->Is("the sound has %zu bytes, which are not a multiple of the %zu of all channels", content.size,
                      block);
  }
  samples->data = content.data;
  samples->count = static_cast<int64_t>(content.size / block);
  return true;
}

int32_t Signed(uint32_t bits, int unused) { return static_cast<int32_t>(bits << unused) >> unused; }

double ValueAt(int32_t encoding, const uint8_t* at) {
  switch (encoding) {
    case kUnsigned8:
      return (*at - 128) / 128.0;
    case kSigned16:
      return Signed(Number16(at), 16) / 32768.0;
    case kSigned24:
      return Signed(Number16(at) | static_cast<uint32_t>(at[2]) << 16, 8) / 8388608.0;
    case kSigned32:
      return static_cast<int32_t>(Number32(at)) / 2147483648.0;
    case kFloat32Bits: {
      float value;
      memcpy(&value, at, sizeof value);
      return value;
    }
    default: {
      double value;
      memcpy(&value, at, sizeof value);
      return value;
    }
  }
}

}  // namespace

bool Open(const Sound& sound, Samples* samples, Reason* reason) {
  if (sound.format < kWav || sound.format > kFloat) {
    return reason->Is("the sound has an unknown format: %d", sound.format);
  }
  if (sound.data == nullptr && sound.bytes > 0) return reason->Is("the sound has no data");
  *samples = {};
  if (sound.format == kWav) {
    if (sound.rate != 0 || sound.channels != 0) {
      return reason->Is("a WAV file has a rate and channels of its own: leave those of the sound 0");
    }
    Chunk format, content;
    return FindChunks(sound.data, sound.bytes, &format, &content, reason) && ReadFormat(format, samples, reason) &&
           Divide(content, samples, reason);
  }
  if (sound.rate < 1 || sound.rate > kHighestRate) return reason->Is("the sound has a rate of %d Hz", sound.rate);
  if (sound.channels < 1 || sound.channels > kMostChannels) {
    return reason->Is("the sound has %d channels; 1 to %d are possible", sound.channels, kMostChannels);
  }
  samples->encoding = sound.format == kPcm16 ? kSigned16 : kFloat32Bits;
  samples->rate = sound.rate;
  samples->channels = sound.channels;
  return Divide({sound.data, sound.bytes}, samples, reason);
}

bool IsFinite(const Samples& samples) {
  if (samples.encoding < kFloat32Bits) return true;
  const size_t size = BytesOf(samples.encoding);
  const uint8_t* const end = samples.data + static_cast<size_t>(samples.count * samples.channels) * size;
  for (const uint8_t* at = samples.data; at != end; at += size) {
    if (!std::isfinite(ValueAt(samples.encoding, at))) return false;
  }
  return true;
}

bool Decode(const Samples& samples, int64_t first, int64_t count, double* to) {
  const size_t size = BytesOf(samples.encoding), channels = static_cast<size_t>(samples.channels);
  const int64_t last = samples.start + samples.count;
  const int64_t begin = std::clamp<int64_t>(first, samples.start, last);
  const int64_t end = std::clamp<int64_t>(first + count, begin, last);
  std::fill_n(to, count, 0.0);
  if (begin == end) return true;
  to += begin - first;
  const uint8_t* from = samples.data + static_cast<size_t>(begin - samples.start) * channels * size;
  bool finite = true;
  for (int64_t i = begin; i < end; ++i, ++to) {
    double sum = 0;
    for (size_t channel = 0; channel < channels; ++channel, from += size) sum += ValueAt(samples.encoding, from);
    finite = finite && std::isfinite(sum);
    *to = channels == 1 ? sum : sum / static_cast<double>(channels);
  }
  return finite;
}

}  // namespace sounds
