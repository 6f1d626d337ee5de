// The command line.
#ifndef RUNNER_OPTIONS_H_
#define RUNNER_OPTIONS_H_

#include <cstdint>
#include <string>

namespace runner {

extern const char kUsage[];

struct Options {
  bool help = false;
  bool version = false;
  bool progress = false;
  bool no_pin = false;
  bool attended = false;  // end the periodic runs when there is something to read, or no more
  bool fifo = false;      // run with a real-time priority
  bool mlock = false;     // keep the memory in RAM
  bool sequence = false;  // the samples are steps of a model with a state
  bool keep_input = false;  // write what was made of the last picture or sound
  bool peak = false;  // only measure what the device's CPUs can do
  std::string release;
  std::string inputs;
  std::string outputs;
  std::string report;
  std::string profile;    // where what each call takes goes; empty: nobody watches
  std::string halves;     // kind of device that is asked about half precision; empty: none
  std::string verify;     // a release that is only verified; empty: none
  std::string variant;    // the name of the release's set of shapes; empty: its only or first one
  std::string beside;     // a release that runs meanwhile, in a process of its own; empty: none
  std::string beside_inputs;
  std::string beside_variant;
  std::string with;       // what was signed of it, where that is not in it yet
  std::string trust;      // folder that says whom the device trusts; empty: the usual one
  std::string state_in;   // the state that a sequence begins with; empty: zeros
  std::string state_out;  // where its last state goes; empty: nowhere
  std::string crops;      // a release that runs on each box of a picture; empty: none
  std::string objects;    // where what pictures or sounds give goes; empty: the inputs are tensors
  std::string expected;   // empty: nothing is compared
  std::string tolerance;  // empty: it follows from the outputs' types
  std::string load;       // other work during the periodic runs: cpu, memory or io; empty: none
  std::string sysfs = "/sys";  // where the clocks and the heat are read
  int64_t warmup_runs = 1;
  int64_t min_runs = 3;
  int64_t max_runs = 10000;
  int64_t budget_ms = 10000;
  int64_t profile_runs = 50;
  int64_t period_us = 0;    // between two runs; 0: no periodic runs
  int64_t for_ms = 60000;   // of periodic runs
  int64_t deadline_us = 0;  // 0: the period
  int64_t samples = 0;  // 0: one, without a dimension for them
  int64_t beside_steps = 0;  // of --beside-inputs, which are a sequence; 0: of a model without a state
  int64_t threads = 0;  // 0: as many as there are usable CPUs
  int64_t floor = -1;   // raise the model's floor to this, and to what the signers ask for; -1: no
};

// Faults are kExitUsage.
Options ParseOptions(int argc, char** argv);

}  // namespace runner

#endif  // RUNNER_OPTIONS_H_
