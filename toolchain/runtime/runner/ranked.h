// Outputs whose rows are in an order of scores: the rule of toolchain/rankings.py.
#ifndef RUNNER_RANKED_H_
#define RUNNER_RANKED_H_

#include <map>
#include <string>
#include <vector>

#include "elements.h"

namespace runner {

// Rows of some outputs: each can be read as [batch, rows, numbers of a row].
struct Ranking {
  size_t batch = 0, rows = 0, more = 0;
  std::vector<double> scores;                // of the expected rows, [batch, rows]
  std::vector<double> next_scores;           // of the rows that came next, [batch, more]
  std::map<std::string, Elements> next_rows;  // these rows by output
  double limit = 0;                          // how far scores may lie apart, relative to the largest
};

// Reads tensors named `<number>.<what>`. Faults are kExitInput.
std::vector<Ranking> ReadRankings(const std::map<std::string, Elements>& tensors,
                                  const std::map<std::string, Elements>& outputs,
                                  const std::string& path);

// Puts the expected rows into the order of the rows that there are, where their scores allow it;
// where no order fits, all of them stay as they are. `got` has the names and shapes of `expected`.
void Arrange(const std::map<std::string, Elements>& got, const Ranking& ranking,
             const std::map<std::string, double>& limits, double score_limit,
             std::map<std::string, Elements>* expected);

}  // namespace runner

#endif  // RUNNER_RANKED_H_
