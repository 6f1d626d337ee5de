// See picture_plan.h. The words are those of toolchain/pictures/plan.py.
#include "picture_plan.h"

#include <cstdint>
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
constexpr const char* kHeads[] = {"none", "classes", "yolo-v5", "yolo-v8", "labels", "detr", "boxes"};
constexpr const char* kForms[] = {"center", "corners", "corners-yx"};

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
      CountElements(output) != int64_t{4} * steps.plan.candidates) {
    table.Fail("does not fit the model's boxes");
  }
}

}  // namespace

PicturePlan ReadPicturePlan(const JsonNode& node, const std::vector<TensorSpec>& inputs,
                            const std::vector<TensorSpec>& outputs) {
  const JsonNode table = node.Get("plan");
  const int64_t space = table.Has("space") ? table.Get("space").Integer() : -1;
  const int64_t masks = table.Has("mask_output") ? table.Get("mask_output").Integer() : -1;
  const int64_t boxes = table.Has("box_output") ? table.Get("box_output").Integer() : -1;
  PicturePlan result{ReadPlan(table), table.Get("output").Integer(), space, node.TextList("labels"), masks, boxes};
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
  const int64_t box = plan.head == pictures::kYoloRows ? 5 : plan.head == pictures::kYoloColumns || plan.head == pictures::kDetr ? 4 : 0;
  const int64_t others = box + plan.points * plan.point_numbers + plan.prototypes;
  if (output.dtype != FindNamedDType("float32") || output.bound.axis >= 0 ||
      CountElements(output) != (plan.classes + others) * int64_t{plan.candidates}) {
    table.Fail("does not fit the model's output");
  }
  CheckMasks(table, result, outputs);
  CheckBoxes(table, result, outputs);
  const bool is_text = plan.head == pictures::kLabels;
  if ((is_text || !result.labels.empty()) && result.labels.size() != static_cast<size_t>(plan.classes - (plan.background > 0 ? 1 : 0))) {
    node.Get("labels").Fail("must have one label for each class");
  }
  return result;
}

}  // namespace edge
