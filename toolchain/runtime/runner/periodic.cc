// See periodic.h.
#include "periodic.h"

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "../model/fault.h"
#include "conditions.h"
#include "histogram.h"
#include "timing.h"

namespace runner {
namespace {

namespace json = tvm::ffi::json;
using edge::Fault;
using edge::kExitRights;
using tvm::ffi::String;

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1'000'000, kSecond = 1'000'000'000;
constexpr int64_t kPause = kSecond;  // before the first run, so that clocks and threads come to rest
constexpr int64_t kWatchedSleep = 200 * kMillisecond;  // longer sleeps watch the input, too
constexpr int64_t kRoomToLook = 2 * kMillisecond;      // until the next run, to read the conditions
constexpr size_t kSlices = 120, kOutliers = 10;
constexpr int kBits = 11, kSliceBits = 4;
constexpr int kPriority = 10;  // above ordinary processes, below most threads of the kernel

int64_t Now() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

void SleepUntil(int64_t when) {
  const timespec time = {static_cast<time_t>(when / kSecond), static_cast<long>(when % kSecond)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
  }
}

struct Outlier {
  int64_t number, begin_ns, latency_ns, run_ns, late_ns, switches;
  json::Value conditions;  // right after it; null if the next run was due
};

json::Object ToJson(const Outlier& outlier) {
  return json::Object{{String("number"), outlier.number},         {String("begin_ns"), outlier.begin_ns},
                      {String("latency_ns"), outlier.latency_ns}, {String("run_ns"), outlier.run_ns},
                      {String("late_ns"), outlier.late_ns},       {String("switches"), outlier.switches},
                      {String("conditions"), outlier.conditions}};
}

// All that is recorded. It takes its memory before the first run.
class Recorder {
 public:
  explicit Recorder(const PeriodicPlan& plan)
      : deadline_(plan.deadline_us * kMicrosecond),
        slice_ns_(std::max<int64_t>(plan.for_ms * kMillisecond / static_cast<int64_t>(kSlices), 1)),
        latency_(kBits),
        run_(kBits),
        lateness_(kBits),
        slices_(kSlices, Histogram(kSliceBits)) {
    outliers_.reserve(kOutliers + 1);
  }

  // Whether a run is among the slowest so far.
  bool IsOutlier(int64_t latency) const {
    return outliers_.size() < kOutliers || latency > outliers_.back().latency_ns;
  }

  void Record(const Outlier& run, bool slept) {
    if (runs_++ == 0) first_ns_ = run.latency_ns;
    latency_.Record(run.latency_ns);
    run_.Record(run.run_ns);
    if (slept) lateness_.Record(run.late_ns);
    slices_[std::min(static_cast<size_t>(run.begin_ns / slice_ns_), kSlices - 1)].Record(run.latency_ns);
    switches_ += run.switches;
    max_ns_ = std::max(max_ns_, run.latency_ns);
    max_run_ns_ = std::max(max_run_ns_, run.run_ns);
    if (slept) max_late_ns_ = std::max(max_late_ns_, run.late_ns);
    missed_now_ = run.latency_ns > deadline_ ? missed_now_ + 1 : 0;
    missed_ += missed_now_ > 0 ? 1 : 0;
    longest_missed_ = std::max(longest_missed_, missed_now_);
  }

  void Keep(const Outlier& run) {
    const auto after = std::find_if(outliers_.begin(), outliers_.end(),
                                    [&](const Outlier& other) { return run.latency_ns > other.latency_ns; });
    outliers_.insert(after, run);
    if (outliers_.size() > kOutliers) outliers_.pop_back();
  }

  int64_t runs() const { return runs_; }
  int64_t missed() const { return missed_; }

  json::Object ToObject() const {
    json::Array slices, outliers;
    for (const Histogram& slice : slices_) slices.push_back(slice.Counts());
    for (const Outlier& outlier : outliers_) outliers.push_back(ToJson(outlier));
    return json::Object{{String("runs"), runs_},
                        {String("first_ns"), first_ns_},
                        {String("missed"), missed_},
                        {String("missed_last"), missed_now_},
                        {String("longest_missed"), longest_missed_},
                        {String("switches"), switches_},
                        {String("latency"), latency_.Counts()},
                        {String("run"), run_.Counts()},
                        {String("lateness"), lateness_.Counts()},
                        {String("max_ns"), max_ns_},
                        {String("max_run_ns"), max_run_ns_},
                        {String("max_late_ns"), max_late_ns_},
                        {String("slice_ns"), slice_ns_},
                        {String("slices"), slices},
                        {String("outliers"), outliers}};
  }

 private:
  const int64_t deadline_, slice_ns_;
  Histogram latency_, run_, lateness_;
  std::vector<Histogram> slices_;
  std::vector<Outlier> outliers_;  // the slowest first
  int64_t runs_ = 0, first_ns_ = 0, switches_ = 0, max_ns_ = 0, max_run_ns_ = 0, max_late_ns_ = 0;
  int64_t missed_ = 0, missed_now_ = 0, longest_missed_ = 0;
};

class Loop {
 public:
  Loop(edge_model* model, Samples* samples, const PeriodicPlan& plan, Load* load)
      : model_(model), samples_(samples), plan_(plan), load_(load), conditions_(plan.sysfs), recorder_(plan) {}

  json::Object Run() {
    const json::Object before = conditions_.Look();
    const int64_t period = plan_.period_us * kMicrosecond, length = plan_.for_ms * kMillisecond;
    if (plan_.attended) Print(0);
    load_->Begin();
    start_ = Now() + kPause;
    switches_ = InvoluntarySwitches();
    int64_t due = start_;
    for (; due < start_ + length && Now() < start_ + length; due += period) {
      FeedNext(samples_);
      const bool early = Now() < due;
      if (!Await(due)) break;
      RunOnce(due, period, early);
      Report();
    }
    const int64_t end = Now();
    load_->CheckRunning();
    json::Object object = recorder_.ToObject();
    // Runs whose time came, but not their turn.
    const int64_t late = std::max<int64_t>(std::min(end, start_ + length) - due, 0);
    object.Set(String("not_started"), (late + period - 1) / period);
    object.Set(String("elapsed_ns"), std::max<int64_t>(end - start_, 0));
    object.Set(String("stopped"), stopped_);
    object.Set(String("processes"), load_->processes());
    object.Set(String("before"), before);
    object.Set(String("after"), conditions_.Look());
    return object;
  }

 private:
  // Returns false if the host wants the result now.
  bool Await(int64_t due) {
    for (int64_t left = due - Now();; left = due - Now()) {
      const bool watched = left > kWatchedSleep;
      if (IsStopped(watched ? left - kWatchedSleep / 2 : 0)) return false;
      if (!watched) break;
    }
    SleepUntil(due);
    return true;
  }

  bool IsStopped(int64_t wait_ns) {
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    const int64_t ms = std::min(wait_ns / kMillisecond, kSecond / kMillisecond);
    if (plan_.attended) {
      stopped_ = poll(&input, 1, static_cast<int>(ms)) > 0;
    } else if (ms > 0) {
      SleepUntil(Now() + ms * kMillisecond);
    }
    return stopped_;
  }

  void RunOnce(int64_t due, int64_t period, bool early) {
    const int64_t begin = Now();
    const int status = edge_step(model_);
    const int64_t end = Now();
    Check(status);
    const int64_t switches = InvoluntarySwitches();
    Outlier run = {recorder_.runs(), due - start_, end - due, end - begin, begin - due, switches - switches_, nullptr};
    switches_ = switches;
    const bool is_outlier = recorder_.IsOutlier(run.latency_ns);
    recorder_.Record(run, early);
    if (!is_outlier) return;
    if (due + period - Now() > kRoomToLook) run.conditions = conditions_.Look();
    recorder_.Keep(run);
  }

  void Report() {
    if (Now() < next_report_) return;
    next_report_ = Now() + kSecond;
    load_->CheckRunning();
    if (plan_.attended) Print(Now() - start_);
  }

  void Print(int64_t elapsed) const {
    printf("periodic %lld %lld %lld\n", static_cast<long long>(recorder_.runs()),
           static_cast<long long>(recorder_.missed()), static_cast<long long>(elapsed / kMillisecond));
    fflush(stdout);
  }

  edge_model* const model_;
  Samples* const samples_;
  const PeriodicPlan& plan_;
  Load* const load_;
  const Conditions conditions_;
  Recorder recorder_;
  int64_t start_ = 0, next_report_ = 0, switches_ = 0;
  bool stopped_ = false;
};

}  // namespace

json::Object RunPeriodically(edge_model* model, Samples* samples, const PeriodicPlan& plan, Load* load) {
  return Loop(model, samples, plan, load).Run();
}

void UseRealTimePriority() {
  sched_param parameter = {};
  parameter.sched_priority = kPriority;
  if (sched_setscheduler(0, SCHED_FIFO, &parameter) != 0) {
    throw Fault(kExitRights, std::string("no real-time priority: ") + strerror(errno));
  }
}

void LockMemory() {
  if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
    throw Fault(kExitRights, std::string("the memory cannot be locked: ") + strerror(errno));
  }
}

}  // namespace runner
