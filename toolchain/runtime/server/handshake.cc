// See handshake.h.
#include "handshake.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "packets.h"

namespace board_server {
namespace {

constexpr size_t kHeaderSize = 2 * sizeof(int32_t);
constexpr char kClientPrefix[] = "client:";
constexpr char kTimeoutPrefix[] = "-timeout=";

int32_t Int32At(const std::string& bytes, size_t offset) {
  int32_t value = 0;
  memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

// The rest of a word after its prefix; false if the prefix is another.
bool After(const std::string& word, const std::string& prefix, std::string* rest) {
  if (word.compare(0, prefix.size(), prefix) != 0) return false;
  *rest = word.substr(prefix.size());
  return true;
}

bool ParseTimeout(const std::string& text, double* seconds) {
  char* end = nullptr;
  *seconds = strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && std::isfinite(*seconds) && *seconds >= 0;
}

}  // namespace

Handshake::State Handshake::Advance() {
  while (true) {
    // The magic is judged before anything else is waited for.
    const size_t wanted = received_.size() < sizeof(int32_t) ? sizeof(int32_t)
                          : received_.size() < kHeaderSize   ? kHeaderSize
                                                             : kHeaderSize + key_size_;
    char buffer[kMaxClientKey + kHeaderSize];
    const int count = Receive(socket_.get(), buffer, wanted - received_.size());
    if (count < 0) return State::kPending;
    if (count == 0) return Refuse("it left during the handshake");
    received_.append(buffer, static_cast<size_t>(count));
    if (received_.size() < wanted) continue;
    if (wanted > kHeaderSize) {
      key_ = received_.substr(kHeaderSize);
      return State::kComplete;
    }
    if (CheckHeader() == State::kRefused) return State::kRefused;
  }
}

Handshake::State Handshake::CheckHeader() {
  if (Int32At(received_, 0) != kRpcMagic) return Refuse("it does not speak this protocol");
  if (received_.size() < kHeaderSize) return State::kPending;
  const int32_t size = Int32At(received_, sizeof(int32_t));
  if (size <= 0 || static_cast<size_t>(size) > kMaxClientKey) {
    return Refuse("its key has a length of " + std::to_string(size));
  }
  key_size_ = static_cast<size_t>(size);
  return State::kPending;
}

Handshake::State Handshake::Refuse(const std::string& reason) {
  reason_ = reason;
  return State::kRefused;
}

ClientKey ParseClientKey(const std::string& text) {
  ClientKey key;
  std::istringstream words(text);
  std::string word, rest;
  if (!(words >> word) || !After(word, kClientPrefix, &key.match_key)) return key;
  while (words >> word) {
    if (After(word, kTimeoutPrefix, &rest) && !ParseTimeout(rest, &key.timeout)) return key;
  }
  key.valid = true;
  return key;
}

}  // namespace board_server
