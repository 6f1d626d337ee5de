// What a client says first, in pieces of any size: the first byte says of which.
#include "server/handshake.h"

#include <algorithm>

#include "fuzz.h"
#include "server/packets.h"
#include "server/secrets.h"

using board_server::Handshake;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = data[0] + size_t{1};
  fuzz::Pair pair;
  Handshake handshake(board_server::Descriptor(pair.here), "client", 0);
  pair.here = -1;  // the handshake's
  Handshake::State state = Handshake::State::kPending;
  for (size_t at = 1; at < size && state == Handshake::State::kPending; at += piece) {
    pair.Send(data + at, std::min(piece, size - at));
    state = handshake.Advance();
  }
  if (state == Handshake::State::kRefused) fuzz::Must(!handshake.reason().empty());
  if (state != Handshake::State::kComplete) return 0;
  fuzz::Must(!handshake.key().empty() && handshake.key().size() <= board_server::kMaxClientKey);
  const board_server::ClientKey key = board_server::ParseClientKey(handshake.key());
  fuzz::Must(!board_server::IsSecret(key.match_key, ""));
  fuzz::Must(!key.valid || key.timeout >= 0);
  return 0;
}
