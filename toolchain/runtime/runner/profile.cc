// See profile.h.
#include "profile.h"

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/device_api.h>

#include "../library/instrument.h"
#include "../model/fault.h"
#include "../model/files.h"
#include "../model/host_tensor.h"
#include "../model/stage.h"
#include "processor.h"
#include "samples.h"
#include "timing.h"

namespace runner {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::Any;
using tvm::ffi::Function;
using tvm::ffi::Object;
using tvm::ffi::PackedArgs;
using tvm::ffi::String;
using tvm::ffi::Tensor;

constexpr size_t kMostCalls = 20'000;    // of one run
constexpr size_t kMostTimes = 2'000'000;  // of all runs
constexpr size_t kLongestName = 256;
constexpr int kFunction = 0, kName = 1, kBefore = 2, kFirst = 4;  // what the hook is called with
constexpr int64_t kWarmupRuns = 2;

// A call that began and has not ended.
struct Begun {
  size_t number;
  Clock::time_point start;
  int64_t inner_ns = 0;
};

class Watcher {
 public:
  explicit Watcher(DLDevice device) : device_(device) {}

  bool waits() const { return device_.device_type != kDLCPU; }

  void Begin() {
    open_.clear();
    times_.clear();
    next_ = 0;
    same_ = true;
  }

  // Ends a run; whether it made the calls that the first one made.
  bool Keep() {
    same_ = same_ && next_ == functions_.size();
    learning_ = false;
    if (!same_) return false;
    for (size_t i = 0; i < next_; ++i) calls_[i].own_ns.push_back(times_[i]);
    return true;
  }

  void Forget() {
    for (Call& call : calls_) call.own_ns.clear();
  }

  void operator()(PackedArgs args, Any*) {
    if (args[kBefore].cast<bool>()) {
      Enter(args);
    } else {
      Leave();
    }
  }

  std::vector<Call>& calls() { return calls_; }

 private:
  void Enter(PackedArgs args) {
    const Object* function = args[kFunction].as<Object>();
    if (learning_) Learn(args, function);
    same_ = same_ && next_ < functions_.size() && functions_[next_] == function;
    const size_t number = next_++;
    if (times_.size() < next_) times_.push_back(0);
    if (next_ > kMostCalls) {
      throw edge::Fault(edge::kExitRunFailed, "a run makes more calls than a profile holds");
    }
    open_.push_back({number, {}});
    Wait();
    open_.back().start = Clock::now();  // after all of the above
  }

  void Leave() {
    Wait();
    const Clock::time_point end = Clock::now();
    const Begun done = open_.back();
    open_.pop_back();
    const auto taken = std::chrono::duration_cast<std::chrono::nanoseconds>(end - done.start).count();
    times_[done.number] = taken - done.inner_ns;
    if (!open_.empty()) open_.back().inner_ns += taken;
  }

  void Learn(PackedArgs args, const Object* function) {
    Call call;
    call.name = edge::OneLine(args[kName].cast<std::string>()).substr(0, kLongestName);
    for (int i = kFirst; i < args.size(); ++i) {
      const auto tensor = args[i].as<Tensor>();
      if (tensor && tensor->defined()) call.bytes += static_cast<int64_t>(edge::SizeOf(*tensor));
    }
    functions_.push_back(function);
    calls_.push_back(std::move(call));
  }

  void Wait() const {
    if (waits()) tvm::runtime::DeviceAPI::Get(device_)->StreamSync(device_, nullptr);
  }

  DLDevice device_;
  bool learning_ = true;  // in the first run
  bool same_ = true;
  size_t next_ = 0;
  std::vector<const Object*> functions_;
  std::vector<Call> calls_;
  std::vector<int64_t> times_;
  std::vector<Begun> open_;
};

json::Array TimesOf(const std::vector<int64_t>& values) {
  return json::Array(values.begin(), values.end());
}

}  // namespace

Profile Watch(edge_model* model, Samples* samples, int64_t runs) {
  const DLDevice device = edge::DeviceOf(model);
  Watcher watcher(device);
  const Function hook = Function::FromPacked([&](PackedArgs args, Any* result) { watcher(args, result); });
  Profile profile;
  profile.device = device;
  profile.waits = watcher.waits();
  const auto plain = [&] {
    FeedNext(samples);
    edge::Instrument(model, Function(nullptr));
    return TimeOneRun(model);
  };
  const auto watched = [&] {
    FeedNext(samples);
    watcher.Begin();
    edge::Instrument(model, hook);
    return TimeOneRun(model);
  };
  for (int64_t run = 0; run < kWarmupRuns; ++run) {
    plain();
    watched();
    watcher.Keep();
  }
  watcher.Forget();
  if (watcher.calls().size() * static_cast<size_t>(runs) > kMostTimes) {
    throw edge::Fault(edge::kExitRunFailed, "so many runs of so many calls are more than a profile holds");
  }
  for (int64_t run = 0; run < runs; ++run) {
    // Who goes first alternates: what one leaves in the caches is there for both.
    if (run % 2 == 0) profile.plain_ns.push_back(plain());
    const int64_t taken = watched();
    if (watcher.Keep()) {
      profile.watched_ns.push_back(taken);
    } else {
      ++profile.other_runs;
    }
    if (run % 2 == 1) profile.plain_ns.push_back(plain());
  }
  edge::Instrument(model, Function(nullptr));
  profile.calls = std::move(watcher.calls());
  return profile;
}

void WriteProfile(const std::string& path, const Profile& profile) {
  json::Array calls;
  for (const Call& call : profile.calls) {
    calls.push_back(json::Object{{String("name"), String(call.name)},
                                 {String("bytes"), call.bytes},
                                 {String("own_ns"), TimesOf(call.own_ns)}});
  }
  const json::Object object{{String("schema"), 1},
                            {String("waits"), profile.waits},
                            {String("processor"), ProcessorOf(profile.device)},
                            {String("calls"), calls},
                            {String("plain_ns"), TimesOf(profile.plain_ns)},
                            {String("watched_ns"), TimesOf(profile.watched_ns)},
                            {String("other_runs"), profile.other_runs}};
  edge::WriteAtomically(path, {std::string(json::Stringify(object)) + "\n"});
}

}  // namespace runner
