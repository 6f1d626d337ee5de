// The board's entry in an RPC tracker: kept there while the board is free, renewed whenever the
// tracker was away.
//
// A message is its length (32 bits) and JSON. The board offers itself under a match key of its own
// making; the tracker hands that key to one client, who shows it here.
#ifndef BOARD_SERVER_TRACKER_H_
#define BOARD_SERVER_TRACKER_H_

#include <cstdint>
#include <deque>
#include <string>

#include "options.h"
#include "sockets.h"

namespace board_server {

class Tracker {
 public:
  // `port` is the one that clients shall connect to.
  Tracker(const Options& options, const Address& address, int port);

  // Whether the board can take a client now. A new offer gets a new match key.
  void SetFree(bool free) { free_ = free; }

  // The board's name there.
  const std::string& key() const { return key_; }
  // Offers the board under another name, or under none until the next one. What was offered so far
  // is gone at once: the tracker forgets it with the connection, and the match key is worthless.
  void SetKey(const std::string& key);
  void Withdraw();

  // The key that a client has to show; empty while there is none.
  const std::string& match_key() const { return match_key_; }
  // The match key is used up.
  void TakeMatchKey();

  // For poll(): -1 and 0 while there is no connection.
  int socket() const { return socket_.get(); }
  short events() const;
  void OnReady();

  // Does what is due: connects, offers, asks, gives up. Returns when it wants to be called again.
  int64_t Update(int64_t now);

 private:
  enum class State { kAway, kConnecting, kGreeting, kReady };
  enum class Request { kInfo, kOffer, kPending };

  void Connect(int64_t now);
  void Lose(const std::string& why);
  void Disconnect();
  void Queue(const std::string& bytes);
  void Ask(Request request, const std::string& json, int64_t now);
  void Offer(int64_t now);
  void AskForPending(int64_t now);
  void Flush();
  void OnConnected();
  void Read();
  void OnGreeting();
  void OnReply(Request request, const std::string& text);
  void OnPending(const std::string& text);

  std::string key_;
  const std::string custom_addr_;
  const Address address_;
  const int port_;

  State state_ = State::kAway;
  Descriptor socket_;
  std::string out_, in_;
  std::deque<Request> asked_;
  int64_t patience_ends_ = 0;  // for what is under way: a connection, a greeting, a reply
  int64_t next_try_ = 0;
  int64_t backoff_ = 0;
  bool complained_ = false;

  bool withdrawn_ = false;
  bool free_ = false;
  bool offered_ = false;
  int64_t next_ping_ = 0;
  int64_t unseen_since_ = 0;  // since when the offer is gone without a client; 0: it is there
  std::string match_key_;
};

}  // namespace board_server

#endif  // BOARD_SERVER_TRACKER_H_
