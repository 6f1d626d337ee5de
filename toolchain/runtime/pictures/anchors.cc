// Anchors, from which the boxes of some networks are differences.
#include <cmath>

#include "pictures.h"

namespace pictures {
namespace {

// An anchor of a table, whose form and unit are the plan's.
Anchor OfTable(const Plan& plan, const float* numbers) {
  const bool is_yx = plan.form == kCenterYx;
  const float width = plan.shares != 0 ? static_cast<float>(plan.width) : 1;
  const float height = plan.shares != 0 ? static_cast<float>(plan.height) : 1;
  return {numbers[is_yx ? 1 : 0] * width, numbers[is_yx ? 0 : 1] * height, numbers[is_yx ? 3 : 2] * width,
          numbers[is_yx ? 2 : 3] * height};
}

}  // namespace

bool CheckTable(const Plan& plan, size_t numbers, Reason* reason) {
  if (numbers == 4 * static_cast<size_t>(plan.table)) return true;
  return reason->Is("the table of anchors has %zu numbers, and the pipeline reads %d anchors", numbers, plan.table);
}

std::vector<Anchor> MakeAnchors(const Plan& plan, const float* table) {
  std::vector<Anchor> anchors;
  if (plan.coding != kDeltas && plan.coding != kLinearDeltas) return anchors;
  anchors.reserve(static_cast<size_t>(plan.candidates));
  for (int32_t i = 0; i < plan.table; ++i) anchors.push_back(OfTable(plan, table + 4 * static_cast<size_t>(i)));
  for (int32_t i = 0; i < plan.levels; ++i) {
    const Level& level = plan.level[i];
    for (int32_t row = 0; row < level.rows; ++row) {
      for (int32_t column = 0; column < level.columns; ++column) {
        const float x = (static_cast<float>(column) + plan.offset) * level.step_x;
        const float y = (static_cast<float>(row) + plan.offset) * level.step_y;
        for (int32_t k = 0; k < level.anchors; ++k) anchors.push_back({x, y, level.size[k][0], level.size[k][1]});
      }
    }
  }
  return anchors;
}

void Decode(const Plan& plan, const Anchor& anchor, float* box) {
  const auto grown = [&plan](float number) {
    return plan.coding == kDeltas ? static_cast<float>(std::exp(static_cast<double>(number))) : number;
  };
  box[0] = box[0] * plan.variance[0] * anchor.width + anchor.x;
  box[1] = box[1] * plan.variance[1] * anchor.height + anchor.y;
  box[2] = grown(box[2] * plan.variance[2]) * anchor.width;
  box[3] = grown(box[3] * plan.variance[3]) * anchor.height;
}

}  // namespace pictures
