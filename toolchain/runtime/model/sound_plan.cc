// See sound_plan.h. The words are those of toolchain/sounds/plan.py.
#include "sound_plan.h"

#include <algorithm>
#include <cstdint>

#include "plan_numbers.h"

namespace edge {
namespace {

constexpr const char* kSoundElements[] = {"float32", "float16", "uint8", "int8"};
constexpr const char* kSoundOperations[] = {"scale", "mean", "std", "normalize", "normalize-bands"};
constexpr const char* kConventions[] = {"none", "librosa", "torchaudio", "kaldi"};
constexpr const char* kPaddings[] = {"zeros", "reflect", "none"};
constexpr const char* kLogarithms[] = {"none", "ln", "log10", "db"};
constexpr const char* kSoundLayouts[] = {"frames", "bands"};
constexpr const char* kSoundHeads[] = {"none", "classes", "labels"};

void ReadOperations(const JsonNode& list, sounds::Plan* plan) {
  const std::vector<JsonNode> items = list.Items();
  if (items.size() > sounds::kMostOperations) list.Fail("has too many entries");
  for (const JsonNode& item : items) {
    plan->operation[plan->operations++] = {Choice(item.Get("kind"), kSoundOperations), Real(item.Get("value"))};
  }
}

void ReadFeatures(const JsonNode& node, sounds::Plan* plan) {
  plan->convention = Choice(node.Get("convention"), kConventions);
  plan->fft = Whole(node.Get("fft"));
  plan->win = Whole(node.Get("win"));
  plan->step = Whole(node.Get("step"));
  plan->mels = Whole(node.Get("mels"));
  plan->coefficients = Whole(node.Get("coefficients"));
  plan->frames = Whole(node.Get("frames"));
  plan->padding = Choice(node.Get("padding"), kPaddings);
  plan->power = Whole(node.Get("power"));
  plan->logarithm = Choice(node.Get("logarithm"), kLogarithms);
  plan->low = node.Get("low").Number();
  plan->high = node.Get("high").Number();
  plan->floor = node.Get("floor").Number();
  plan->offset = node.Get("offset").Number();
  plan->top = node.Get("top").Number();
}

sounds::Plan ReadPlan(const JsonNode& node, SoundPlan* result) {
  sounds::Plan plan = {};
  plan.rate = Whole(node.Get("rate"));
  plan.resample = node.Get("resample").Truth() ? 1 : 0;
  plan.samples = Whole(node.Get("samples"));
  plan.hop = Whole(node.Get("hop"));
  if (node.Has("context")) plan.context = Whole(node.Get("context"));
  ReadFeatures(node, &plan);
  plan.bands_first = Choice(node.Get("layout"), kSoundLayouts);
  plan.element = Choice(node.Get("dtype"), kSoundElements);
  ReadOperations(node.Get("operations"), &plan);
  plan.head = Choice(node.Get("head"), kSoundHeads);
  const bool softmax = node.Get("softmax").Truth();
  plan.softmax = softmax ? 1 : 0;
  plan.most = Whole(node.Get("most"));
  plan.classes = Whole(node.Get("classes"));
  plan.candidates = Whole(node.Get("candidates"));
  plan.blank = Whole(node.Get("blank"));
  if (node.Has("beam")) plan.beam = Whole(node.Get("beam"));
  result->output = node.Get("output").Integer();
  result->space = node.Get("space").Integer();
  sounds::Reason reason;
  if (!sounds::CheckPlan(plan, &reason)) node.Fail(reason.text);
  return plan;
}

// The first input that is not a state.
size_t FindInput(size_t inputs, const std::vector<StatePair>& states) {
  for (size_t i = 0; i < inputs; ++i) {
    const auto is_it = [i](const StatePair& pair) { return pair.input == i; };
    if (std::none_of(states.begin(), states.end(), is_it)) return i;
  }
  return 0;
}

}  // namespace

SoundPlan ReadSoundPlan(const JsonNode& node, const std::vector<TensorSpec>& inputs,
                        const std::vector<TensorSpec>& outputs, const std::vector<StatePair>& states) {
  const JsonNode table = node.Get("plan");
  SoundPlan result{{}, -1, -1, node.TextList("labels"), FindInput(inputs.size(), states)};
  result.plan = ReadPlan(table, &result);
  const sounds::Plan& plan = result.plan;
  const int64_t bands = plan.coefficients > 0 ? plan.coefficients : plan.mels;
  const bool fits = inputs.size() == states.size() + 1 &&
                    inputs[result.input].dtype == FindNamedDType(kSoundElements[plan.element]) &&
                    CountElements(inputs[result.input]) == bands * plan.frames;
  if (!fits) table.Fail("does not fit the model's input");
  if (!states.empty() && plan.hop == 0) table.Get("hop").Fail("is 0, and the model has a state");
  if (plan.head == sounds::kNoHead) {
    if (result.output != -1 || !result.labels.empty()) table.Fail("reads an output without a head");
    return result;
  }
  if (result.output < 0 || result.output >= static_cast<int64_t>(outputs.size())) {
    table.Get("output").Fail("is not an output");
  }
  const TensorSpec& output = outputs[static_cast<size_t>(result.output)];
  for (const StatePair& pair : states) {
    if (pair.output == static_cast<size_t>(result.output)) table.Get("output").Fail("is a state");
  }
  if (output.dtype != FindNamedDType("float32") || output.bound.axis >= 0 ||
      CountElements(output) != int64_t{plan.classes} * plan.candidates) {
    table.Fail("does not fit the model's output");
  }
  const bool is_text = plan.head == sounds::kLabels;
  if ((is_text || !result.labels.empty()) && result.labels.size() != static_cast<size_t>(plan.classes)) {
    node.Get("labels").Fail("must have one label for each class");
  }
  return result;
}

}  // namespace edge
