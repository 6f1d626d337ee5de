// See tracker.h.
#include "tracker.h"

#include <poll.h>
#include <tvm/ffi/container/array.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "../model/fault.h"
#include "../model/json.h"
#include "log.h"
#include "packets.h"
#include "secrets.h"

namespace board_server {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

constexpr int32_t kTrackerMagic = 0x2F271;
constexpr int kPut = 3, kUpdateInfo = 5, kGetPending = 7;
constexpr int32_t kMaxMessage = 1 << 20;
constexpr int64_t kPatienceMs = 5000, kFirstBackoffMs = 250, kMaxBackoffMs = 5000;
// The stock server's numbers: a client that was given the key has about six seconds to come.
constexpr int64_t kPingMs = 2000, kUnseenMs = 6000;
constexpr int64_t kLongMs = 3600 * 1000;

json::Value TextOrNull(const std::string& text) {
  return text.empty() ? json::Value(nullptr) : json::Value(String(text));
}

// Nothing where it is no list.
std::optional<json::Array> ParseList(const std::string& text) {
  try {
    return edge::ParseJson(text, "").as<json::Array>();
  } catch (const edge::Fault&) {
    return std::nullopt;
  }
}

std::string Text(const json::Array& array) { return std::string(json::Stringify(array)); }

}  // namespace

Tracker::Tracker(const Options& options, const Address& address, int port)
    : key_(options.key), custom_addr_(options.custom_addr), address_(address), port_(port) {}

void Tracker::SetKey(const std::string& key) {
  Disconnect();
  match_key_.clear();
  key_ = key;
  withdrawn_ = false;
  complained_ = false;
  backoff_ = 0;
  next_try_ = 0;
}

void Tracker::Withdraw() {
  Disconnect();
  match_key_.clear();
  withdrawn_ = true;
}

void Tracker::TakeMatchKey() {
  match_key_.clear();
  offered_ = false;
  free_ = false;
}

short Tracker::events() const {
  if (!socket_.open()) return 0;
  return state_ == State::kConnecting || !out_.empty() ? POLLIN | POLLOUT : POLLIN;
}

int64_t Tracker::Update(int64_t now) {
  if (withdrawn_) return now + kLongMs;
  if (state_ == State::kAway && now >= next_try_) Connect(now);
  if (state_ == State::kAway) return next_try_;
  if ((state_ != State::kReady || !asked_.empty()) && now >= patience_ends_) {
    Lose("no answer");
    return next_try_;
  }
  if (state_ == State::kReady && asked_.empty()) {
    if (free_ && !offered_) Offer(now);
    else if (free_ && now >= next_ping_) AskForPending(now);
  }
  // While a session runs nothing is asked: the tracker must not disturb what is measured.
  if (state_ != State::kReady || !asked_.empty()) return patience_ends_;
  return free_ ? next_ping_ : now + kLongMs;
}

void Tracker::Connect(int64_t now) {
  socket_ = Descriptor(::socket(address_.storage.ss_family,
                                SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_.open()) return Lose(strerror(errno));
  SetConnectionOptions(socket_.get());
  patience_ends_ = now + kPatienceMs;
  state_ = State::kConnecting;
  if (connect(socket_.get(), address_.get(), address_.size) == 0) return OnConnected();
  if (errno != EINPROGRESS) Lose(strerror(errno));
}

// The same complaint is made once, not at every attempt.
void Tracker::Lose(const std::string& why) {
  if (!complained_) Log("tracker " + address_.Text() + " is lost: " + why + "; trying again");
  complained_ = true;
  Disconnect();
  backoff_ = std::min(std::max(2 * backoff_, kFirstBackoffMs), kMaxBackoffMs);
  next_try_ = Now() + backoff_;
}

void Tracker::Disconnect() {
  socket_.Close();
  out_.clear();
  in_.clear();
  asked_.clear();
  offered_ = false;
  state_ = State::kAway;
}

void Tracker::OnReady() {
  if (state_ == State::kConnecting) OnConnected();
  if (socket_.open()) Read();
  if (socket_.open()) Flush();
}

void Tracker::OnConnected() {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return Lose(strerror(error));
  state_ = State::kGreeting;
  Queue(Int32Bytes(kTrackerMagic));
}

void Tracker::Queue(const std::string& bytes) {
  out_ += bytes;
  Flush();
}

void Tracker::Flush() {
  while (!out_.empty()) {
    const ssize_t count = send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN && errno != EINTR) return Lose(strerror(errno));
    if (count < 0) return;
    out_.erase(0, static_cast<size_t>(count));
  }
}

void Tracker::Ask(Request request, const std::string& json, int64_t now) {
  asked_.push_back(request);
  patience_ends_ = now + kPatienceMs;
  Queue(Int32Bytes(static_cast<int32_t>(json.size())) + json);
}

void Tracker::Offer(int64_t now) {
  match_key_ = key_ + ":" + NewSecret();
  offered_ = true;
  unseen_since_ = 0;
  next_ping_ = now + kPingMs;
  Ask(Request::kOffer,
      Text(json::Array{kPut, String(key_), json::Array{port_, String(match_key_)},
                       TextOrNull(custom_addr_)}),
      now);
}

void Tracker::AskForPending(int64_t now) {
  next_ping_ = now + kPingMs;
  Ask(Request::kPending, Text(json::Array{kGetPending}), now);
}

void Tracker::Read() {
  char buffer[4096];
  int count = 0;
  while ((count = Receive(socket_.get(), buffer, sizeof(buffer))) > 0) {
    in_.append(buffer, static_cast<size_t>(count));
    if (in_.size() > static_cast<size_t>(kMaxMessage)) break;
  }
  if (state_ == State::kGreeting && in_.size() >= sizeof(int32_t)) OnGreeting();
  while (state_ == State::kReady && in_.size() >= sizeof(int32_t)) {
    int32_t size = 0;
    memcpy(&size, in_.data(), sizeof(size));
    if (size < 0 || size > kMaxMessage || asked_.empty()) return Lose("it sent an invalid answer");
    if (in_.size() < sizeof(size) + static_cast<size_t>(size)) break;
    const std::string text = in_.substr(sizeof(size), static_cast<size_t>(size));
    in_.erase(0, sizeof(size) + static_cast<size_t>(size));
    const Request request = asked_.front();
    asked_.pop_front();
    OnReply(request, text);
  }
  if (count == 0 && socket_.open()) Lose("it closed the connection");
}

void Tracker::OnGreeting() {
  int32_t magic = 0;
  memcpy(&magic, in_.data(), sizeof(magic));
  in_.erase(0, sizeof(magic));
  if (magic != kTrackerMagic) return Lose("it is not an RPC tracker");
  state_ = State::kReady;
  const json::Object info{{String("key"), String("server:" + key_)},
                          {String("addr"), json::Array{TextOrNull(custom_addr_), port_}}};
  Ask(Request::kInfo, Text(json::Array{kUpdateInfo, info}), Now());
}

void Tracker::OnReply(Request request, const std::string& text) {
  if (request == Request::kPending) return OnPending(text);
  if (text != "0") return Lose("it refused the board: " + Printable(text));
  if (request == Request::kOffer) return;
  Log("registered at tracker " + address_.Text() + " as " + key_);
  complained_ = false;
  backoff_ = 0;
}

// The match key is gone when a client was given it. One that does not come must not keep the board
// from the others.
void Tracker::OnPending(const std::string& text) {
  const std::optional<json::Array> keys = ParseList(text);
  if (!keys.has_value()) return Lose("it sent an invalid answer");
  const bool seen = std::any_of(keys->begin(), keys->end(), [this](const json::Value& key) {
    const auto one = key.as<String>();
    return one.has_value() && std::string(*one) == match_key_;
  });
  const int64_t now = Now();
  if (seen || !offered_) unseen_since_ = 0;
  else if (unseen_since_ == 0) unseen_since_ = now;
  else if (now - unseen_since_ >= kUnseenMs) {
    Log("the client that the tracker sent did not come; offering the board again");
    offered_ = false;
  }
}

}  // namespace board_server
