// See server.h.
#include "server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "../model/fault.h"
#include "descendants.h"
#include "log.h"
#include "packets.h"
#include "secrets.h"
#include "version.h"

namespace board_server {
namespace {

constexpr int64_t kAcceptPauseMs = 1000;
// Who shows this key gets the versions for an answer, also while a session runs, and no session.
constexpr char kVersionKey[] = "edge-toolchain:version";
constexpr char kSocketName[] = "/socket";
constexpr char kShortFolder[] = "/tmp";
constexpr char kAbstractName[] = "@edge-board-server-";
constexpr short kGone = POLLRDHUP | POLLHUP | POLLERR;

// nohup, and a shell that starts a job in the background, have a signal ignored.
bool IsIgnored(int number) {
  struct sigaction action = {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

Descriptor SignalDescriptor() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (int number : {SIGTERM, SIGINT, SIGHUP}) {
    if (!IsIgnored(number)) sigaddset(&set, number);
  }
  signal(SIGCHLD, SIG_DFL);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return Descriptor(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
}

std::string Welcoming(const std::string& text) {
  return Int32Bytes(kRpcMagic) + Int32Bytes(static_cast<int32_t>(text.size())) + text;
}

short EventsOf(const std::map<int, short>& ready, int socket) {
  const auto found = ready.find(socket);
  return found == ready.end() ? 0 : found->second;
}

// Android's SELinux lets a login make files and no sockets among them. A name that nobody could know
// beforehand does as well: whoever connects is asked for its user, there as here.
Descriptor ListenAlone(const std::string& path) {
  try {
    return ListenUnix(UnixAddress(path));
  } catch (const edge::Fault& fault) {
    Log(std::string(fault.what()) + "; listening without a file");
    return Listen(UnixAddress(kAbstractName + NewSecret()), 0);
  }
}

}  // namespace

Server::Server(const Options& options)
    : options_(options),
      control_(options.control ? std::make_unique<Control>() : nullptr),
      work_folder_(options.work_dir),
      listener_(MakeListener()),
      signals_(SignalDescriptor()) {
  AdoptDescendants();
  const Address here = LocalAddress(listener_.get());
  if (!here.IsLoopback()) {
    Log("warning: any client that reaches " + here.Text() + " can run code on this board");
  }
  if (options.tracker_port != 0) {
    const Address there = Resolve("--tracker", options.tracker_host, options.tracker_port);
    tracker_ = std::make_unique<Tracker>(options, there, here.port());
  }
}

// The folder is this user's alone, and so is the socket in it.
Descriptor Server::MakeListener() {
  Descriptor listener;
  if (options_.socket) {
    std::string path = work_folder_.path() + kSocketName;
    if (!FitsUnixAddress(path)) {
      socket_folder_ = std::make_unique<WorkFolder>(kShortFolder);
      path = socket_folder_->path() + kSocketName;
    }
    listener = ListenAlone(path);
  } else {
    listener = Listen(Resolve("--host", options_.host, options_.port), options_.port_end);
  }
  fcntl(listener.get(), F_SETFL, fcntl(listener.get(), F_GETFL) | O_NONBLOCK);
  return listener;
}

void Server::Run() {
  while (!stopping_) Handle(Wait(Update()));
  Log("stopping");
}

// Does what time asks for; returns when it will ask again.
int64_t Server::Update() {
  const int64_t now = Now();
  Welcome();
  int64_t next = std::min(newcomers_.DropLate(now), dismissed_.DropLate(now));
  if (session_) next = std::min(next, session_->Update(now));
  if (tracker_) {
    tracker_->SetFree(!session_);
    next = std::min(next, tracker_->Update(now));
  }
  return accept_again_ > now ? std::min(next, accept_again_) : next;
}

Server::ReadySockets Server::Wait(int64_t until) const {
  std::vector<pollfd> polled;
  const auto add = [&polled](int socket, short events) {
    if (socket >= 0) polled.push_back({socket, events, 0});
  };
  add(signals_.get(), POLLIN);
  if (accept_again_ <= Now()) add(listener_.get(), POLLIN);
  if (tracker_) add(tracker_->socket(), tracker_->events());
  if (control_ && control_->wants_input()) add(control_->input(), POLLIN);
  if (control_ && control_->has_output()) add(control_->output(), POLLOUT);
  for (const Handshake& one : newcomers_.all()) add(one.socket(), POLLIN);
  for (const Client& one : waiting_.all()) add(one.socket.get(), POLLRDHUP);
  for (const Dismissed::One& one : dismissed_.all()) add(one.socket.get(), POLLIN);
  if (session_ && !session_->client_left()) add(session_->socket(), POLLRDHUP);

  const int64_t left = std::clamp<int64_t>(until - Now(), 0, 3600 * 1000);
  ReadySockets ready;
  if (poll(polled.data(), polled.size(), static_cast<int>(left)) <= 0) return ready;
  for (const pollfd& one : polled) {
    if (one.revents != 0) ready[one.fd] = one.revents;
  }
  return ready;
}

void Server::Handle(const ReadySockets& ready) {
  if (tracker_ && EventsOf(ready, tracker_->socket()) != 0) tracker_->OnReady();
  if (session_ && (EventsOf(ready, session_->socket()) & kGone) != 0) session_->OnClientLeft();
  for (const auto& [socket, events] : ready) {
    dismissed_.OnReady(socket);
    if ((events & kGone) != 0) waiting_.OnHangUp(socket);
  }
  if (EventsOf(ready, signals_.get()) != 0) HandleSignals();
  if (control_) HandleControl(ready);
  HandleNewcomers(ready);
}

void Server::HandleSignals() {
  signalfd_siginfo info = {};
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) stopping_ = true;
  }
  if (session_ && session_->Reap()) Finish();
}

void Server::HandleControl(const ReadySockets& ready) {
  if (EventsOf(ready, control_->input()) != 0) {
    for (const std::string& line : control_->TakeLines()) control_->Answer(Obey(line));
  }
  if (EventsOf(ready, control_->output()) != 0) control_->Flush();
  if (!control_->controller_gone() || stopping_) return;
  Log("the controller is gone: standard input or output is closed");
  stopping_ = true;
}

// Does what a line asks for; returns the answer, which has no secret in it.
std::string Server::Obey(const std::string& line) {
  const ControlLine order = ParseControlLine(line, tracker_ ? NameProblem : SecretProblem);
  if (!order.problem.empty()) return "error " + order.problem;
  switch (order.order) {
    case ControlLine::Order::kCut: CutSession(); return "ok cut";
    case ControlLine::Order::kWithdraw:
      if (tracker_) tracker_->Withdraw();
      else SetKey("");
      Log("withdrawn: no key opens a session");
      return "ok withdraw";
    case ControlLine::Order::kKey: break;
  }
  if (!tracker_) {
    SetKey(order.key);
    return "ok key";
  }
  tracker_->SetKey(order.key);
  return "ok key " + order.key;
}

// What was begun, or waits, under the last key is over.
void Server::SetKey(const std::string& key) {
  key_ = key;
  waiting_.Refuse();
  CutSession();
}

void Server::CutSession() {
  if (session_) session_->Cut();
}

void Server::Tell(const std::string& event) {
  if (control_) control_->Tell(event);
}

void Server::HandleNewcomers(const ReadySockets& ready) {
  if (EventsOf(ready, listener_.get()) != 0 && !newcomers_.AcceptFrom(listener_.get())) {
    accept_again_ = Now() + kAcceptPauseMs;
  }
  std::list<Handshake>& all = newcomers_.all();
  for (auto one = all.begin(); one != all.end();) {
    const Handshake::State state = one->Advance();
    if (state == Handshake::State::kComplete) Admit(&*one);
    if (state == Handshake::State::kRefused) Log("dropping " + one->peer() + ": " + one->reason());
    one = state == Handshake::State::kPending ? std::next(one) : all.erase(one);
  }
}

// A client who shows the right key gets into the line.
void Server::Admit(Handshake* newcomer) {
  if (newcomer->key() == kVersionKey) {
    SendWhole(newcomer->socket(), Welcoming(VersionLine()));
    return;
  }
  const ClientKey shown = ParseClientKey(newcomer->key());
  Client client{newcomer->TakeSocket(), newcomer->peer(), shown.timeout};
  if (!shown.valid || !IsSecret(shown.match_key, tracker_ ? tracker_->match_key() : key_)) {
    // What it shows may be the key of yesterday, or of another board: it is not for the log.
    Log("refusing " + client.peer + ": it shows no key that opens a session now");
    SendWhole(client.socket.get(), Int32Bytes(kRpcMismatch));
    return;
  }
  if (tracker_) tracker_->TakeMatchKey();
  if (waiting_.Add(&client)) return;
  Log("refusing " + client.peer + ": too many clients wait");
}

void Server::Welcome() {
  while (!session_ && !waiting_.empty()) {
    Client client = waiting_.TakeFirst();
    const std::string name = tracker_ ? tracker_->key() : "";
    if (SendWhole(client.socket.get(), Welcoming("server:" + name))) Start(std::move(client));
  }
}

void Server::Start(Client client) {
  const int number = ++session_count_;
  const std::string name = "session " + std::to_string(number);
  const std::string peer = client.peer;
  std::string folder;
  try {
    folder = work_folder_.MakeSessionFolder(number);
    session_ = std::make_unique<Session>(number, &client, folder,
                                         Limits{options_.session_limit, options_.idle_limit});
    Log(name + " for " + peer + " begins");
    Tell(name + " begins");
  } catch (const std::runtime_error& error) {
    Log(name + " for " + peer + " cannot begin: " + error.what());
    if (!folder.empty()) RemoveFolder(folder);  // whoever is told finds nothing left
    Tell(name + " ends: " + error.what());
    dismissed_.Add(std::move(client.socket), error.what());
  }
}

void Server::Finish() {
  const std::string problem = session_->Problem();
  const bool told = !problem.empty() && session_->CanTell();
  const std::string name = "session " + std::to_string(session_->number());
  Tell(name + " ends: " + (problem.empty() ? "well" : problem));
  Log(name + " ends" + (problem.empty() ? "" : ": " + problem) +
      (problem.empty() || told ? "" : "; the client cannot be told in the midst of a reply"));
  if (told) dismissed_.Add(session_->TakeSocket(), problem);
  const std::string folder = session_->folder();
  session_.reset();
  RemoveFolder(folder);
}

}  // namespace board_server
