// A service that runs a release again and again, and takes up a new one when it is deployed:
//   service RELEASE [RUNS_PER_SECOND [RUNS]]
// It ends at SIGTERM. It writes a line after each release that it opens, for its log and its health.
#include <edge_model.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

namespace {

struct Closer {
  void operator()(edge_model* model) const { edge_close(model); }
};
using Clock = std::chrono::steady_clock;
using Model = std::unique_ptr<edge_model, Closer>;

volatile std::sig_atomic_t ended = 0;

// The release that a path leads to, or the one that there was: a service outlives a bad deploy.
Model Opened(const char* path, Model before) {
  edge_options options = EDGE_OPTIONS;
  options.threads = EDGE_ALL_CPUS;
  edge_model* model = nullptr;
  if (edge_open(path, &options, &model) != EDGE_OK) {
    std::fprintf(stderr, "service: %s\n", edge_error());
    return before;
  }
  edge_release release = EDGE_RELEASE_INFO;
  edge_release_of(model, &release);
  std::printf("open %s %s\n", release.name, release.digest);
  std::fflush(stdout);
  return Model(model);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: service RELEASE [RUNS_PER_SECOND [RUNS]]\n"), 2;
  const auto pause = std::chrono::duration<double>(argc > 2 ? 1 / std::atof(argv[2]) : 0.1);
  const long runs = argc > 3 ? std::atol(argv[3]) : -1;
  std::signal(SIGTERM, [](int) { ended = 1; });
  Model model = Opened(argv[1], nullptr);
  if (!model) return 1;
  auto looks = Clock::now();
  for (long run = 0; run != runs && !ended; ++run) {
    if (Clock::now() >= looks && edge_changed(model.get())) {
      model = Opened(argv[1], std::move(model));
      looks = Clock::now() + std::chrono::milliseconds(100);  // a release that cannot be opened is tried again
    }
    if (edge_run(model.get()) != EDGE_OK) {
      std::fprintf(stderr, "service: %s\n", edge_error());
      return 1;
    }
    std::this_thread::sleep_for(pause);
  }
  std::printf("end\n");
}
