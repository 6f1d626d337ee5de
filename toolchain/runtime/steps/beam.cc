// The most probable text of rows of scores, by a search over its beginnings. It multiplies and adds doubles in a fixed
// order, so that all processors find the same text, also where two are as probable.
#include <algorithm>
#include <cmath>

#include "steps.h"

namespace steps {
namespace {

constexpr float kMostShare = 1.001f;  // a softmax in half precision may round up

}  // namespace

BeamSearch::BeamSearch(const LabelRows& table, int32_t width, bool softmax)
    : table_(table), width_(static_cast<size_t>(width)), softmax_(softmax) {
  if (width == 0) return;
  shares_.resize(static_cast<size_t>(table.classes));
  nodes_.reserve(static_cast<size_t>(table.rows) * width_ + 1);
  beams_.reserve(width_);
  best_.reserve(width_);
}

// The shares of a row: its softmax, or the row itself.
bool BeamSearch::Weigh(int32_t number, const float* row, Reason* reason) {
  const auto classes = static_cast<size_t>(table_.classes);
  if (!softmax_) {
    for (size_t i = 0; i < classes; ++i) {
      if (!(row[i] >= 0 && row[i] <= kMostShare)) {
        return reason->Is("row %d of the model's output has %g, which is not a share from 0 to 1: build the release with "
                          "--post softmax before ctc", number, static_cast<double>(row[i]));
      }
      shares_[i] = row[i];
    }
    return true;
  }
  const float highest = *std::max_element(row, row + classes);
  double sum = 0;
  for (size_t i = 0; i < classes; ++i) {
    shares_[i] = std::exp(static_cast<double>(row[i] - highest));
    sum += shares_[i];
  }
  if (!std::isfinite(sum)) return reason->Is("row %d of the model's output has a number that is not finite", number);
  for (double& share : shares_) share /= sum;
  return true;
}

int32_t BeamSearch::Child(int32_t node, int32_t label) const {
  int32_t child = nodes_[static_cast<size_t>(node)].child;
  while (child >= 0 && nodes_[static_cast<size_t>(child)].label != label) child = nodes_[static_cast<size_t>(child)].sibling;
  return child;
}

// Keeps a text if it is among the best; of equal ones, the first.
void BeamSearch::Offer(const Beam& text) {
  const auto total = [](const Beam& beam) { return beam.blank + beam.other; };
  const bool is_full = best_.size() == width_;
  if (!(total(text) > (is_full ? total(best_.back()) : 0))) return;
  if (is_full) best_.pop_back();
  const auto better = [total](const Beam& one, const Beam& other) { return total(one) > total(other); };
  best_.insert(std::upper_bound(best_.begin(), best_.end(), text, better), text);
}

// Texts that stay as they are: after a blank, or their last label again, also where a shorter one gets that label.
void BeamSearch::Stay() {
  for (const Beam& beam : beams_) {
    const Node& node = nodes_[static_cast<size_t>(beam.node)];
    Beam stays = {beam.node, -1, (beam.blank + beam.other) * shares_[static_cast<size_t>(table_.blank)], 0};
    if (node.label >= 0) {
      const double share = shares_[static_cast<size_t>(node.label)];
      stays.other = beam.other * share;
      const Node& parent = nodes_[static_cast<size_t>(node.parent)];
      if (parent.beam >= 0) {
        const Beam& shorter = beams_[static_cast<size_t>(parent.beam)];
        stays.other += (parent.label == node.label ? shorter.blank : shorter.blank + shorter.other) * share;
      }
    }
    Offer(stays);
  }
}

// Texts with one more label. The same label again needs a blank between.
void BeamSearch::Extend() {
  for (const Beam& beam : beams_) {
    const int32_t last = nodes_[static_cast<size_t>(beam.node)].label;
    const double total = beam.blank + beam.other;
    for (int32_t label = 0; label < table_.classes; ++label) {
      if (label == table_.blank) continue;
      const double other = (label == last ? beam.blank : total) * shares_[static_cast<size_t>(label)];
      const double least = best_.size() == width_ ? best_.back().blank + best_.back().other : 0;
      if (!(other > least)) continue;
      const int32_t child = Child(beam.node, label);
      if (child >= 0 && nodes_[static_cast<size_t>(child)].beam >= 0) continue;  // it stays
      Offer({beam.node, label, 0, other});
    }
  }
}

void BeamSearch::Step(int32_t row) {
  best_.clear();
  Stay();
  Extend();
  if (best_.empty()) return;  // a row of zeros
  for (const Beam& beam : beams_) nodes_[static_cast<size_t>(beam.node)].beam = -1;
  int exponent = 0;
  std::frexp(best_.front().blank + best_.front().other, &exponent);
  beams_.clear();
  for (const Beam& text : best_) {
    int32_t node = text.node;
    if (text.label >= 0) {
      node = Child(text.node, text.label);
      if (node < 0) {
        node = static_cast<int32_t>(nodes_.size());
        Node& parent = nodes_[static_cast<size_t>(text.node)];
        const float share = static_cast<float>(shares_[static_cast<size_t>(text.label)]);
        nodes_.push_back({text.node, text.label, -1, parent.child, row, -1, share});
        nodes_[static_cast<size_t>(text.node)].child = node;
      }
    }
    nodes_[static_cast<size_t>(node)].beam = static_cast<int32_t>(beams_.size());
    // By a power of two, which rounds nothing.
    beams_.push_back({node, -1, std::ldexp(text.blank, -exponent), std::ldexp(text.other, -exponent)});
  }
}

bool BeamSearch::Read(const float* scores, std::vector<Object>* objects, Reason* reason) {
  nodes_.assign(1, {-1, -1, -1, -1, 0, 0, 0});
  beams_.assign(1, {0, -1, 1, 0});
  for (int32_t row = 0; row < table_.rows; ++row, scores += table_.classes) {
    if (!Weigh(row, scores, reason)) return false;
    Step(row);
  }
  const size_t first = objects->size();
  for (int32_t at = beams_.front().node; at > 0; at = nodes_[static_cast<size_t>(at)].parent) {
    const Node& node = nodes_[static_cast<size_t>(at)];
    objects->push_back({node.label, node.score, static_cast<float>(node.row * table_.row_s), 0,
                        static_cast<float>((node.row + 1) * table_.row_s), 0});
  }
  std::reverse(objects->begin() + static_cast<std::ptrdiff_t>(first), objects->end());
  return true;
}

}  // namespace steps
