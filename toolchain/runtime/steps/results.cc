// From rows of scores to classes, and to the labels of a text.
#include <algorithm>
#include <cmath>

#include "steps.h"

namespace steps {

void RankClasses(const Ranking& ranking, const float* row, std::vector<Object>* objects) {
  const size_t start = objects->size();
  float highest = -INFINITY;
  double sum = 0;
  if (ranking.softmax) {
    for (int32_t i = 0; i < ranking.classes; ++i) highest = std::max(highest, row[i]);
    for (int32_t i = 0; i < ranking.classes; ++i) sum += std::exp(static_cast<double>(row[i] - highest));
  }
  const auto better = [](const Object& one, const Object& other) { return one.score > other.score; };
  for (int32_t i = 0; i < ranking.classes; ++i) {
    const double score = ranking.softmax ? std::exp(static_cast<double>(row[i] - highest)) / sum : row[i];
    const Object object = {i, static_cast<float>(score), 0, 0, 0, 0};
    if (!(object.score > ranking.score)) continue;  // nor NaN
    const bool is_full = objects->size() - start == static_cast<size_t>(ranking.most);
    if (is_full && !better(object, objects->back())) continue;
    if (is_full) objects->pop_back();
    const auto first = objects->begin() + static_cast<std::ptrdiff_t>(start);
    objects->insert(std::upper_bound(first, objects->end(), object, better), object);
  }
}

void ReadLabels(const LabelRows& table, const float* scores, std::vector<Object>* objects) {
  int32_t last = table.blank;
  for (int32_t row = 0; row < table.rows; ++row, scores += table.classes) {
    int32_t best = 0;
    for (int32_t i = 1; i < table.classes; ++i) {
      if (scores[i] > scores[best] || std::isnan(scores[best])) best = i;
    }
    const float begin = static_cast<float>(row * table.row_s), end = static_cast<float>((row + 1) * table.row_s);
    if (best != table.blank && best == last) {
      objects->back().score = std::max(objects->back().score, scores[best]);
      objects->back().right = end;
    } else if (best != table.blank) {
      objects->push_back({best, scores[best], begin, 0, end, 0});
    }
    last = best;
  }
}

}  // namespace steps
