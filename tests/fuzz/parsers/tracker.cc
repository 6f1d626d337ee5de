// What a tracker says, in pieces: each has its size before it, in 16 bits. Two seconds pass from one
// to the next.
#include "server/tracker.h"

#include <poll.h>

#include <algorithm>

#include "fuzz.h"
#include "server/log.h"

using namespace board_server;  // NOLINT: the harness is of this room

namespace {

constexpr int64_t kStepMs = 2100;

bool HasInput(int socket) {
  pollfd polled = {socket, POLLIN, 0};
  return poll(&polled, 1, 0) > 0;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Address address = UnixAddress(fuzz::Folder() + "/tracker");
  static const Descriptor listener = ListenUnix(address);
  Options options;
  options.key = "board";
  Tracker tracker(options, address, 9090);
  tracker.SetFree(true);
  int64_t now = Now();
  tracker.Update(now);
  const Descriptor there(accept(listener.get(), nullptr, nullptr));
  while (size > 2) {
    const size_t piece = std::min<size_t>(data[0] | data[1] << 8, size - 2);
    SendWhole(there.get(), std::string(fuzz::Text(data + 2, piece)));
    while (tracker.socket() >= 0 && HasInput(tracker.socket())) tracker.OnReady();
    if (tracker.socket() < 0) break;  // or it would try again
    tracker.Update(now += kStepMs);
    if (tracker.socket() < 0) break;
    data += 2 + piece;
    size -= 2 + piece;
  }
  return 0;
}
