// A session's replies, in pieces: the boundary between two packets does not depend on them.
#include "server/packets.h"

#include <algorithm>

#include "fuzz.h"

using board_server::PacketMeter;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = data[0] + size_t{1};
  const std::string text(fuzz::Text(data + 1, size - 1));
  PacketMeter whole, pieces;
  whole.Add(text.data(), text.size());
  for (size_t at = 0; at < text.size(); at += piece) {
    pieces.Add(text.data() + at, std::min(piece, text.size() - at));
  }
  fuzz::Must(whole.AtBoundary() == pieces.AtBoundary());
  if (!whole.AtBoundary()) return 0;
  const std::string packet = board_server::ExceptionPacket(text);
  whole.Add(packet.data(), packet.size());
  fuzz::Must(whole.AtBoundary());
  return 0;
}
