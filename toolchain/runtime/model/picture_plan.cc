// See picture_plan.h. The words are those of toolchain/pictures/plan.py.
#include "picture_plan.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "plan_numbers.h"

namespace edge {
namespace {

constexpr const char* kOrders[] = {"rgb", "bgr", "gray"};
constexpr const char* kKernels[] = {"none", "nearest", "pillow", "opencv", "torch"};
constexpr const char* kFits[] = {"stretch", "letterbox", "crop"};
constexpr const char* kLayouts[] = {"nhwc", "nchw"};
constexpr const char* kElements[] = {"float32", "float16", "uint8", "int8"};
constexpr const char* kArithmetic[] = {"scale", "mean", "std"};
constexpr const char* kHeads[] = {"none", "classes", "yolo-v5", "yolo-v8", "labels", "detr", "boxes", "grid"};
constexpr const char* kForms[] = {"center", "corners", "corners-yx", "center-yx"};
constexpr const char* kCodings[] = {"none", "deltas", "linear", "yolo-v3", "yolo-v5", "yolox"};
constexpr const char* kStorages[] = {"joined", "rows", "planes", "cells"};

void ReadOperations(const JsonNode& list, pictures::Plan* plan) {
  const std::vector<JsonNode> items = list.Items();
  if (items.size() > pictures::kMostOperations) list.Fail("has too many entries");
  for (const JsonNode& item : items) {
    pictures::Operation& operation = plan->operation[plan->operations++];
    operation.kind = Choice(item.Get("kind"), kArithmetic);
    const std::vector<JsonNode> values = item.Get("values").Items();
    if (values.size() != pictures::kChannels) item.Fail("must have three values");
    for (size_t i = 0; i < values.size(); ++i) operation.values[i] = Real(values[i]);
  }
}

void ReadLevels(const JsonNode& list, pictures::Plan* plan) {
  const std::vector<JsonNode> items = list.Items();
  if (items.size() > pictures::kMostLevels) list.Fail("has too many entries");
  for (const JsonNode& item : items) {
    pictures::Level& level = plan->level[plan->levels++];
    level.columns = Whole(item.Get("columns"));
    level.rows = Whole(item.Get("rows"));
    level.step_x = Real(item.Get("step_x"));
    level.step_y = Real(item.Get("step_y"));
    const std::vector<JsonNode> sizes = item.Get("sizes").Items();
    if (sizes.size() > pictures::kMostAnchors) item.Fail("has too many sizes");
    for (const JsonNode& size : sizes) {
      const std::vector<JsonNode> sides = size.Items();
      if (sides.size() != 2) size.Fail("must have two values");
      for (size_t i = 0; i < 2; ++i) level.size[level.anchors][i] = Real(sides[i]);
      ++level.anchors;
    }
  }
}

// How boxes follow from anchors or cells.
void ReadAnchors(const JsonNode& node, pictures::Plan* plan) {
  plan->coding = Choice(node.Get("coding"), kCodings);
  plan->storage = Choice(node.Get("storage"), kStorages);
  plan->offset = Real(node.Get("offset"));
  const std::vector<JsonNode> variances = node.Get("variances").Items();
  if (variances.size() != 4) node.Get("variances").Fail("must have four values");
  for (size_t i = 0; i < 4; ++i) plan->variance[i] = Real(variances[i]);
  ReadLevels(node.Get("levels"), plan);
}

// The bits of floats in hexadecimal digits, the lowest byte first.
std::vector<float> ReadTable(const JsonNode& node) {
  constexpr const char* kDigits = "0123456789abcdef";
  const std::string text = node.Text();
  const auto digit = [&](char c) {
    const char* const place = c == 0 ? nullptr : strchr(kDigits, c);
    if (place == nullptr) node.Fail("is not in hexadecimal digits");
    return static_cast<uint32_t>(place - kDigits);
  };
  if (text.size() % 32 != 0) node.Fail("has no four numbers for each anchor");
  std::vector<float> values(text.size() / 8);
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 4; ++k) {
      bits |= (digit(text[i * 8 + k * 2]) << 4 | digit(text[i * 8 + k * 2 + 1])) << (8 * k);
    }
    memcpy(&values[i], &bits, sizeof bits);
  }
  return values;
}

pictures::Plan ReadPlan(const JsonNode& node) {
  pictures::Plan plan = {};
  plan.width = Whole(node.Get("width"));
  plan.height = Whole(node.Get("height"));
  plan.order = Choice(node.Get("order"), kOrders);
  plan.kernel = Choice(node.Get("kernel"), kKernels);
  plan.fit = Choice(node.Get("fit"), kFits);
  plan.short_side = Whole(node.Get("short_side"));
  plan.pad = Whole(node.Get("pad"));
  plan.channels_first = Choice(node.Get("layout"), kLayouts);
  plan.element = Choice(node.Get("dtype"), kElements);
  ReadOperations(node.Get("operations"), &plan);
  plan.head = Choice(node.Get("head"), kHeads);
  const bool softmax = node.Get("softmax").Truth();
  plan.softmax = softmax ? 1 : 0;
  plan.most = Whole(node.Get("most"));
  plan.classes = Whole(node.Get("classes"));
  plan.candidates = Whole(node.Get("candidates"));
  plan.nms = Real(node.Get("nms"));
  plan.score = Real(node.Get("score"));
  if (node.Has("blank")) plan.blank = Whole(node.Get("blank"));  // of labels only
  for (const auto& [name, field] : {std::pair<const char*, int32_t*>{"beam", &plan.beam},
                                    {"points", &plan.points},
                                    {"point_numbers", &plan.point_numbers},
                                    {"prototypes", &plan.prototypes},
                                    {"mask_width", &plan.mask_width},
                                    {"mask_height", &plan.mask_height},
                                    {"background", &plan.background}}) {
    if (node.Has(name)) *field = Whole(node.Get(name));
  }
  if (node.Has("form")) plan.form = Choice(node.Get("form"), kForms);
  plan.shares = node.Has("shares") && node.Get("shares").Truth() ? 1 : 0;
  plan.sigmoid = node.Has("sigmoid") && node.Get("sigmoid").Truth() ? 1 : 0;
  if (node.Has("coding")) ReadAnchors(node, &plan);
  if (node.Has("table")) plan.table = static_cast<int32_t>(node.Get("table").Text().size() / 32);
  pictures::Reason reason;
  if (!pictures::CheckPlan(plan, &reason)) node.Fail(reason.text);
  return plan;
}

// The output of prototypes is another one than that of the boxes.
void CheckMasks(const JsonNode& table, const PicturePlan& steps, const std::vector<TensorSpec>& outputs) {
  const pictures::Plan& plan = steps.plan;
  if ((plan.prototypes > 0) != (steps.masks >= 0)) table.Fail("has prototypes without their output, or the reverse");
  if (steps.masks < 0) return;
  if (steps.masks >= static_cast<int64_t>(outputs.size()) || steps.masks == steps.output) {
    table.Get("mask_output").Fail("is not an output of prototypes");
  }
  const TensorSpec& output = outputs[static_cast<size_t>(steps.masks)];
  if (output.dtype != FindNamedDType("float32") || output.bound.axis >= 0 ||
      CountElements(output) != int64_t{plan.prototypes} * plan.mask_width * plan.mask_height) {
    table.Fail("does not fit the model's prototypes");
  }
}

// Boxes that are in an output of their own.
void CheckBoxes(const JsonNode& table, const PicturePlan& steps, const std::vector<TensorSpec>& outputs) {
  const bool has_boxes = steps.plan.head == pictures::kBoxes;
  if (has_boxes != (steps.boxes >= 0)) table.Fail("has boxes without their output, or the reverse");
  if (!has_boxes) return;
  if (steps.boxes >= static_cast<int64_t>(outputs.size()) || steps.boxes == steps.output) {
    table.Get("box_output").Fail("is not an output of boxes");
  }
  const TensorSpec& output = outputs[static_cast<size_t>(steps.boxes)];
  if (output.dtype != FindNamedDType("float32") || output.bound.axis >= 0 ||
      CountElements(output) != (int64_t{4} + steps.plan.points * steps.plan.point_numbers) * steps.plan.candidates) {
    table.Fail("does not fit the model's boxes");
  }
}

// The levels of a grid that are outputs of their own.
void CheckLevels(const JsonNode& table, const PicturePlan& steps, const std::vector<TensorSpec>& outputs) {
  const pictures::Plan& plan = steps.plan;
  const bool are_apart = plan.head == pictures::kGrid && plan.storage != pictures::kJoined;
  if (steps.levels.size() != static_cast<size_t>(are_apart ? plan.levels : 0)) table.Fail("has no output for each level");
  for (size_t i = 0; i < steps.levels.size(); ++i) {
    const int64_t number = steps.levels[i];
    const pictures::Level& level = plan.level[i];
    const int64_t boxes = int64_t{level.columns} * level.rows * level.anchors;
    if (number < 0 || number >= static_cast<int64_t>(outputs.size())) table.Get("level_outputs").Fail("are not outputs");
    const TensorSpec& output = outputs[static_cast<size_t>(number)];
    if (output.dtype != FindNamedDType("float32") || output.bound.axis >= 0 ||
        CountElements(output) != boxes * (plan.classes + 5)) {
      table.Fail("does not fit the model's levels");
    }
  }
}

// How many numbers the output has that the plan's `output` is.
int64_t CountOf(const pictures::Plan& plan) {
  if (plan.head == pictures::kGrid) return (plan.classes + int64_t{5}) * plan.candidates;
  if (plan.head == pictures::kBoxes) return int64_t{plan.classes} * plan.candidates;
  const bool has_four = plan.head == pictures::kYoloColumns || plan.head == pictures::kDetr;
  const int64_t box = plan.head == pictures::kYoloRows ? 5 : has_four ? 4 : 0;
  return (plan.classes + box + plan.points * plan.point_numbers + plan.prototypes) * int64_t{plan.candidates};
}

}  // namespace

PicturePlan ReadPicturePlan(const JsonNode& node, const std::vector<TensorSpec>& inputs,
                            const std::vector<TensorSpec>& outputs) {
  const JsonNode table = node.Get("plan");
  const int64_t space = table.Has("space") ? table.Get("space").Integer() : -1;
  const int64_t masks = table.Has("mask_output") ? table.Get("mask_output").Integer() : -1;
  const int64_t boxes = table.Has("box_output") ? table.Get("box_output").Integer() : -1;
  PicturePlan result{ReadPlan(table), table.Get("output").Integer(), space, node.TextList("labels"), masks, boxes, {}, {}};
  if (table.Has("level_outputs")) result.levels = table.Shape("level_outputs");
  if (table.Has("table")) result.table = ReadTable(table.Get("table"));
  const pictures::Plan& plan = result.plan;
  const int64_t channels = plan.order == pictures::kAsGray ? 1 : pictures::kChannels;
  const bool fits = inputs.size() == 1 && inputs[0].dtype == FindNamedDType(kElements[plan.element]) &&
                    CountElements(inputs[0]) == channels * plan.width * plan.height;
  if (!fits) table.Fail("does not fit the model's input");
  if (plan.head == pictures::kNoHead) {
    if (result.output != -1 || !result.labels.empty()) table.Fail("reads an output without a head");
    return result;
  }
  if (result.output < 0 || result.output >= static_cast<int64_t>(outputs.size())) {
    table.Get("output").Fail("is not an output");
  }
  const TensorSpec& output = outputs[static_cast<size_t>(result.output)];
  if (result.levels.empty() && (output.dtype != FindNamedDType("float32") || output.bound.axis >= 0 ||
                                CountElements(output) != CountOf(plan))) {
    table.Fail("does not fit the model's output");
  }
  CheckMasks(table, result, outputs);
  CheckBoxes(table, result, outputs);
  CheckLevels(table, result, outputs);
  const bool is_text = plan.head == pictures::kLabels;
  if ((is_text || !result.labels.empty()) && result.labels.size() != static_cast<size_t>(plan.classes - (plan.background > 0 ? 1 : 0))) {
    node.Get("labels").Fail("must have one label for each class");
  }
  return result;
}

}  // namespace edge
