// The server: one thread that waits for everything at once and for nothing in particular.
#ifndef BOARD_SERVER_SERVER_H_
#define BOARD_SERVER_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "clients.h"
#include "control.h"
#include "options.h"
#include "session.h"
#include "sockets.h"
#include "tracker.h"
#include "work_folder.h"

namespace board_server {

class Server {
 public:
  // Listens, but takes nobody yet. Throws edge::Fault of kExitUsage.
  explicit Server(const Options& options);

  std::string address() const { return LocalAddress(listener_.get()).Text(); }

  // Serves until SIGTERM, SIGINT or SIGHUP, or until its controller is gone.
  void Run();

 private:
  using ReadySockets = std::map<int, short>;

  Descriptor MakeListener();
  ReadySockets Wait(int64_t until) const;
  int64_t Update();
  void Handle(const ReadySockets& ready);
  void HandleSignals();
  void HandleControl(const ReadySockets& ready);
  std::string Obey(const std::string& line);
  void SetKey(const std::string& key);
  void Tell(const std::string& event);
  void HandleNewcomers(const ReadySockets& ready);
  void Admit(Handshake* newcomer);
  void Welcome();
  void Start(Client client);
  void CutSession();
  void Finish();

  const Options options_;
  std::unique_ptr<Control> control_;  // first: a socket could take a closed stream's number
  WorkFolder work_folder_;
  std::unique_ptr<WorkFolder> socket_folder_;  // where the other's path is too long
  Descriptor listener_;
  Descriptor signals_;
  std::unique_ptr<Tracker> tracker_;
  std::string key_;  // that opens sessions; empty: none does. With a tracker its match key does
  Newcomers newcomers_;
  WaitingLine waiting_;
  std::unique_ptr<Session> session_;
  Dismissed dismissed_;
  int64_t accept_again_ = 0;
  int session_count_ = 0;
  bool stopping_ = false;
};

}  // namespace board_server

#endif  // BOARD_SERVER_SERVER_H_
