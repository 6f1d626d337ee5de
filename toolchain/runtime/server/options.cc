// See options.h. The options are rows of tables, so that parsing is the same few lines for all.
#include "options.h"

#include <cmath>
#include <cstdlib>
#include <set>
#include <utility>

#include "../model/fault.h"
#include "handshake.h"

namespace board_server {

const char kUsage[] =
    "usage: board_server --socket [--work-dir DIR] [--session-limit S] [--idle-limit S]\n"
    "       board_server --connect PATH\n"
    "       board_server [--host 127.0.0.1] [--port 9090] [--port-end N] --control\n"
    "       board_server [--host 127.0.0.1] [--port 9090] [--port-end N]\n"
    "                    --tracker HOST:PORT --key NAME [--custom-addr ADDR] [--control]\n"
    "       board_server --version\n"
    "\n"
    "Serves TVM's RPC protocol, one session at a time, each in a process of its own. Prints the\n"
    "address once it listens. A client with a session can run code as this user.\n"
    "\n"
    "  --socket           listens on a Unix socket that is this user's alone, and is controlled\n"
    "  --connect PATH     not a server: carries standard input and output to and from the one of\n"
    "                     this user that listens there\n"
    "  --port N           first TCP port to try; 0 lets the system choose\n"
    "  --port-end N       last port to try; without it only the first\n"
    "  --control          reads orders from standard input and answers each by one line:\n"
    "                     'key KEY', 64 hexadecimal digits that open sessions from now on;\n"
    "                     'withdraw', none does; 'cut' ends the session. The first two end it,\n"
    "                     too. Prints when sessions begin and end; ends when standard input does\n"
    "  --tracker          registers there as --key, which all its users can read, and again\n"
    "                     after the tracker was away; 'key NAME' is then another name, and the\n"
    "                     tracker gives the keys of sessions to any client\n"
    "  --custom-addr      address that the tracker gives to clients\n"
    "  --work-dir DIR     existing folder for the sessions' files; $TMPDIR or /tmp without it\n"
    "  --session-limit S  no session lasts longer, whatever the client asks for\n"
    "  --idle-limit S     none lasts in which the client asks for nothing for so many seconds\n";

namespace {

using edge::Fault;
using edge::kExitUsage;

constexpr int kMaxPort = 65535;
constexpr double kOneWeek = 7 * 24 * 3600;

[[noreturn]] void Refuse(const std::string& what) { throw Fault(kExitUsage, what); }

double ParseNumber(const std::string& name, const std::string& text, double least, double most) {
  char* end = nullptr;
  const double value = strtod(text.c_str(), &end);
  const bool odd = text.empty() || text[0] == ' ' || *end != '\0' || !std::isfinite(value);
  if (odd || value < least || value > most) Refuse(name + " cannot be \"" + text + "\"");
  return value;
}

int ParsePort(const std::string& name, const std::string& text, int least) {
  const double value = ParseNumber(name, text, least, kMaxPort);
  if (value != std::floor(value)) Refuse(name + " cannot be \"" + text + "\"");
  return static_cast<int>(value);
}

std::string NotEmpty(const std::string& name, const std::string& text) {
  if (text.empty()) Refuse(name + " cannot be empty");
  return text;
}

void SetTracker(Options* options, const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) Refuse("--tracker must be HOST:PORT");
  const bool in_brackets = text[0] == '[' && text[colon - 1] == ']';  // [::1]:9190
  options->tracker_host = in_brackets ? text.substr(1, colon - 2) : text.substr(0, colon);
  options->tracker_port = ParsePort("--tracker", text.substr(colon + 1), 1);
}

std::string CheckedName(const std::string& text) {
  const std::string problem = NameProblem(text);
  if (!problem.empty()) Refuse("--key " + problem);
  return text;
}

struct Flag {
  const char* name;
  bool Options::*value;
};

const Flag kFlags[] = {{"--help", &Options::help},
                       {"--version", &Options::version},
                       {"--socket", &Options::socket},
                       {"--control", &Options::control}};

bool SetFlag(Options* options, const std::string& name) {
  for (const Flag& flag : kFlags) {
    if (name != flag.name) continue;
    options->*flag.value = true;
    return true;
  }
  return false;
}

struct ValueOption {
  const char* name;
  void (*set)(Options*, const std::string&);
};

const ValueOption kValues[] = {
    {"--connect", [](Options* o, const std::string& s) { o->connect = NotEmpty("--connect", s); }},
    {"--host", [](Options* o, const std::string& s) { o->host = NotEmpty("--host", s); }},
    {"--port", [](Options* o, const std::string& s) { o->port = ParsePort("--port", s, 0); }},
    {"--port-end",
     [](Options* o, const std::string& s) { o->port_end = ParsePort("--port-end", s, 1); }},
    {"--tracker", SetTracker},
    {"--key", [](Options* o, const std::string& s) { o->key = CheckedName(s); }},
    {"--custom-addr",
     [](Options* o, const std::string& s) { o->custom_addr = NotEmpty("--custom-addr", s); }},
    {"--work-dir",
     [](Options* o, const std::string& s) { o->work_dir = NotEmpty("--work-dir", s); }},
    {"--session-limit",
     [](Options* o, const std::string& s) {
       o->session_limit = ParseNumber("--session-limit", s, 0.1, kOneWeek);
     }},
    {"--idle-limit",
     [](Options* o, const std::string& s) {
       o->idle_limit = ParseNumber("--idle-limit", s, 0.1, kOneWeek);
     }},
};

const ValueOption* FindOption(const std::string& name) {
  for (const ValueOption& option : kValues) {
    if (name == option.name) return &option;
  }
  return nullptr;
}

void RefuseAny(const std::set<std::string>& given, const std::string& beside,
               const std::set<std::string>& refused) {
  for (const std::string& name : given) {
    if (refused.count(name) != 0) Refuse(name + " cannot be combined with " + beside);
  }
}

void CheckTracker(const Options& options) {
  const bool tracker = options.tracker_port != 0;
  if (tracker && options.key.empty()) Refuse("--tracker needs --key");
  if (!tracker && !options.key.empty()) {
    Refuse(
        "--key is a board's public name at a --tracker; a key that opens sessions is a secret, "
        "which any user of this machine could read here: use --socket or --control, and write "
        "'key KEY' to standard input");
  }
  if (!tracker && !options.custom_addr.empty()) {
    Refuse("--custom-addr requires --tracker");
  }
}

void CheckTogether(const Options& options, std::set<std::string> given) {
  if (options.help || options.version) return;
  if (!options.connect.empty()) {
    given.erase("--connect");
    if (!given.empty()) Refuse(*given.begin() + " cannot be combined with --connect");
    return;
  }
  if (options.socket) {
    RefuseAny(given, "--socket",
              {"--host", "--port", "--port-end", "--tracker", "--custom-addr"});
  }
  CheckTracker(options);
  if (options.port_end != 0 && options.port_end < options.port) {
    Refuse("--port-end is below --port");
  }
  if (!options.socket && !options.control && options.tracker_port == 0) {
    Refuse("no client could open a session: use --socket or --control, and write 'key KEY' to "
           "standard input");
  }
}

}  // namespace

// Clients send their key in one line with blanks between the words.
std::string NameProblem(const std::string& key) {
  if (key.empty()) return "cannot be empty";
  for (unsigned char c : key) {
    if (c <= ' ' || c > '~') return "must be of printable ASCII characters without blanks";
  }
  return key.size() > kMaxServerKey ? "is too long" : "";
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  std::set<std::string> seen;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (!seen.insert(name).second) Refuse(name + " is given twice");
    if (SetFlag(&options, name)) continue;
    const ValueOption* option = FindOption(name);
    if (!option) Refuse("unknown option \"" + name + "\"; see board_server --help");
    if (++i == argc) Refuse(name + " needs a value");
    option->set(&options, argv[i]);
  }
  CheckTogether(options, std::move(seen));
  options.control = options.control || options.socket;
  return options;
}

}  // namespace board_server
