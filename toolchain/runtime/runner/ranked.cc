// See ranked.h.
#include "ranked.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "../model/fault.h"

namespace runner {
namespace {

using edge::Fault;
using edge::kExitInput;
using Real = long double;

// --- reading --------------------------------------------------------------------------------------

struct Parts {
  const Elements *scores = nullptr, *next_scores = nullptr, *limit = nullptr;
};

void CheckFits(const Ranking& ranking, const std::map<std::string, Elements>& outputs,
               const std::string& path) {
  const size_t count = ranking.batch * ranking.rows;
  if (ranking.next_rows.empty()) throw Fault(kExitInput, "a ranking has no outputs", path);
  for (const auto& [name, rows] : ranking.next_rows) {
    const auto output = outputs.find(name);
    if (output == outputs.end() || output->second.dtype != rows.dtype || count == 0 ||
        output->second.bytes.size() % count != 0 ||
        output->second.bytes.size() / count * ranking.batch * ranking.more != rows.bytes.size()) {
      throw Fault(kExitInput, "a ranking does not fit the output " + name, path);
    }
  }
}

Ranking RankingOf(const Parts& parts, std::map<std::string, Elements> next_rows,
                  const std::map<std::string, Elements>& outputs, const std::string& path) {
  if (!parts.scores || !parts.next_scores || !parts.limit || parts.scores->shape.size() != 2 ||
      parts.next_scores->shape.size() != 2 || parts.scores->shape[0] != parts.next_scores->shape[0] ||
      !IsReal(*parts.scores) || !IsReal(*parts.next_scores)) {
    throw Fault(kExitInput, "a ranking lacks a part, or has one of another shape", path);
  }
  const std::vector<double> limit = Doubles(*parts.limit);
  if (limit.size() != 1 || !(limit[0] >= 0)) {
    throw Fault(kExitInput, "the limit of a ranking is not valid", path);
  }
  Ranking ranking;
  ranking.batch = parts.scores->shape[0];
  ranking.rows = parts.scores->shape[1];
  ranking.more = parts.next_scores->shape[1];
  ranking.scores = Doubles(*parts.scores);
  ranking.next_scores = Doubles(*parts.next_scores);
  ranking.next_rows = std::move(next_rows);
  ranking.limit = limit[0];
  CheckFits(ranking, outputs, path);
  return ranking;
}

// --- comparing rows -------------------------------------------------------------------------------

double GapOf(const std::vector<double>& numbers, double limit) {
  double largest = 0;
  for (const double number : numbers) {
    if (std::isfinite(number)) largest = std::max(largest, std::fabs(number));
  }
  return limit * largest;
}

bool AreAlike(double left, double right, double gap) {
  return std::fabs(static_cast<Real>(left) - static_cast<Real>(right)) <= gap || left == right ||
         (left != left && right != right);
}

// One output: the rows that there are, and all that they may be.
struct Output {
  std::vector<double> got, expected, next;  // empty of whole numbers, which have to be the same
  const Elements *got_bytes, *expected_bytes, *next_bytes;
  double gap;
  size_t width;      // numbers of a row
  size_t row_bytes;  // bytes of a row

  // Rows of a part of the batch: of those that there are, and of the expected ones with the next ones
  // behind them.
  bool Fits(const Ranking& ranking, size_t part, size_t row, size_t other) const {
    const bool is_next = other >= ranking.rows;
    const size_t left = part * ranking.rows + row;
    const size_t right = is_next ? part * ranking.more + other - ranking.rows
                                 : part * ranking.rows + other;
    if (got.empty()) {
      const std::string& bytes = (is_next ? next_bytes : expected_bytes)->bytes;
      return got_bytes->bytes.compare(left * row_bytes, row_bytes, bytes, right * row_bytes,
                                      row_bytes) == 0;
    }
    const std::vector<double>& numbers = is_next ? next : expected;
    for (size_t i = 0; i < width; ++i) {
      if (!AreAlike(got[left * width + i], numbers[right * width + i], gap)) return false;
    }
    return true;
  }
};

Output OutputOf(const Ranking& ranking, const Elements& got, const Elements& expected,
                const Elements& next, double limit) {
  const size_t row_bytes = expected.bytes.size() / (ranking.batch * ranking.rows);
  const size_t width = row_bytes / static_cast<size_t>(expected.dtype->bytes);
  Output output{Doubles(got), Doubles(expected), Doubles(next), &got, &expected, &next, 0,
                width, row_bytes};
  output.gap = GapOf(output.expected, limit);
  return output;
}

// Gives each of `places` another one of `candidates`, by augmenting paths; empty if one has none.
std::vector<size_t> Matched(const std::vector<std::vector<size_t>>& fitting, size_t candidates) {
  constexpr size_t kNobody = static_cast<size_t>(-1);
  std::vector<size_t> owner(candidates, kNobody), found(fitting.size());
  std::vector<bool> seen;
  const std::function<bool(size_t)> take = [&](size_t place) {
    for (const size_t candidate : fitting[place]) {
      if (seen[candidate]) continue;
      seen[candidate] = true;
      if (owner[candidate] == kNobody || take(owner[candidate])) {
        owner[candidate] = place;
        found[place] = candidate;
        return true;
      }
    }
    return false;
  };
  for (size_t place = 0; place < fitting.size(); ++place) {
    seen.assign(candidates, false);
    if (!take(place)) return {};
  }
  return found;
}

}  // namespace

std::vector<Ranking> ReadRankings(const std::map<std::string, Elements>& tensors,
                                  const std::map<std::string, Elements>& outputs,
                                  const std::string& path) {
  const std::string rows = "next_rows.";
  std::map<std::string, Parts> parts;
  std::map<std::string, std::map<std::string, Elements>> next_rows;
  for (const auto& [key, value] : tensors) {
    const size_t dot = key.find('.');
    const std::string number = key.substr(0, dot);
    const std::string what = dot == std::string::npos ? "" : key.substr(dot + 1);
    if (what == "scores") {
      parts[number].scores = &value;
    } else if (what == "next_scores") {
      parts[number].next_scores = &value;
    } else if (what == "limit") {
      parts[number].limit = &value;
    } else if (what.compare(0, rows.size(), rows) == 0) {
      next_rows[number][what.substr(rows.size())] = value;
      parts[number];
    } else {
      throw Fault(kExitInput, "has a ranking in an unknown form: " + key, path);
    }
  }
  std::vector<Ranking> found;
  for (const auto& [number, own] : parts) {
    found.push_back(RankingOf(own, std::move(next_rows[number]), outputs, path));
  }
  return found;
}

void Arrange(const std::map<std::string, Elements>& got, const Ranking& ranking,
             const std::map<std::string, double>& limits, double score_limit,
             std::map<std::string, Elements>* expected) {
  std::map<std::string, Output> outputs;
  for (const auto& [name, next] : ranking.next_rows) {
    outputs[name] = OutputOf(ranking, got.at(name), expected->at(name), next, limits.at(name));
  }
  const double gap = GapOf(ranking.scores, score_limit);
  std::map<std::string, Elements> arranged;
  for (const auto& [name, output] : outputs) arranged[name] = *output.expected_bytes;
  const auto fits = [&](size_t part, size_t row, size_t other) {
    return std::all_of(outputs.begin(), outputs.end(), [&](const auto& named) {
      return named.second.Fits(ranking, part, row, other);
    });
  };
  const auto score = [&](size_t part, size_t other) {
    return other < ranking.rows ? ranking.scores[part * ranking.rows + other]
                                : ranking.next_scores[part * ranking.more + other - ranking.rows];
  };
  for (size_t part = 0; part < ranking.batch; ++part) {
    std::vector<size_t> places;
    for (size_t row = 0; row < ranking.rows; ++row) {
      if (!fits(part, row, row)) places.push_back(row);
    }
    if (places.empty()) continue;
    std::vector<size_t> candidates = places;
    for (size_t i = 0; i < ranking.more; ++i) candidates.push_back(ranking.rows + i);
    std::vector<std::vector<size_t>> fitting(places.size());
    for (size_t i = 0; i < places.size(); ++i) {
      for (size_t j = 0; j < candidates.size(); ++j) {
        const bool is_near = AreAlike(score(part, places[i]), score(part, candidates[j]), gap);
        if (is_near && fits(part, places[i], candidates[j])) fitting[i].push_back(j);
      }
    }
    const std::vector<size_t> match = Matched(fitting, candidates.size());
    if (match.empty()) return;
    for (auto& [name, bytes] : arranged) {
      const Output& output = outputs[name];
      for (size_t i = 0; i < places.size(); ++i) {
        const size_t other = candidates[match[i]];
        const std::string& from =
            (other < ranking.rows ? output.expected_bytes : output.next_bytes)->bytes;
        const size_t at = other < ranking.rows ? part * ranking.rows + other
                                               : part * ranking.more + other - ranking.rows;
        bytes.bytes.replace((part * ranking.rows + places[i]) * output.row_bytes, output.row_bytes,
                            from, at * output.row_bytes, output.row_bytes);
      }
    }
  }
  for (auto& [name, bytes] : arranged) (*expected)[name] = bytes;
}

}  // namespace runner
