// See manifest.h.
#include "manifest.h"

#include <algorithm>
#include <set>

#include "../crypto/crypto.h"
#include "fault.h"
#include "files.h"
#include "json.h"
#include "picture_plan.h"
#include "sound_plan.h"

namespace edge {
namespace {

// As in toolchain/bundle/manifest.py.
constexpr size_t kLargestManifest = 1 << 20;
constexpr size_t kMostAxes = 32;
constexpr size_t kMostVariants = 64;
constexpr int64_t kLargestSize = int64_t{1} << 28;  // of a dynamic dimension
constexpr int64_t kLargestTensors = int64_t{1} << 32;  // bytes of all inputs, and of all outputs

Bound ReadBound(const JsonNode& node, size_t rank) {
  const int64_t axis = node.Get("axis").Integer();
  if (axis < 0 || axis >= static_cast<int64_t>(rank)) node.Get("axis").Fail("is not an axis");
  return {static_cast<int>(axis), node.Get("count").Text()};
}

TensorSpec ReadSpec(const JsonNode& node) {
  const std::string dtype = node.Get("dtype").Text();
  TensorSpec spec{node.Get("name").Text(), node.Shape("shape"), FindNamedDType(dtype)};
  if (spec.dtype == nullptr) node.Fail("has the unknown dtype \"" + dtype + "\"");
  if (spec.shape.size() > kMostAxes) node.Fail("has too many axes");
  if (CountBytes(*spec.dtype, spec.shape) < 0) node.Fail("has a shape that overflows");
  if (node.Has("bound")) spec.bound = ReadBound(node.Get("bound"), spec.shape.size());
  return spec;
}

std::vector<TensorSpec> ReadSpecs(const JsonNode& root, const std::string& key) {
  std::vector<TensorSpec> specs;
  std::set<std::string> seen;
  int64_t room = kLargestTensors;
  for (const JsonNode& node : root.Get(key).Items()) {
    specs.push_back(ReadSpec(node));
    const int64_t bytes = CountBytes(*specs.back().dtype, specs.back().shape);
    if (bytes > room) node.Fail("is too large: all of them together may have 4 GiB");
    room -= bytes;
    if (!seen.insert(specs.back().name).second) {
      node.Fail("repeats the name \"" + specs.back().name + "\"");
    }
  }
  return specs;
}

size_t NumberOf(const JsonNode& name, const std::vector<TensorSpec>& specs) {
  const std::string text = name.Text();
  const auto found = std::find_if(specs.begin(), specs.end(),
                                  [&text](const TensorSpec& spec) { return spec.name == text; });
  if (found == specs.end()) name.Fail("is not the name of a tensor: \"" + text + "\"");
  return static_cast<size_t>(found - specs.begin());
}

std::vector<StatePair> ReadStates(const JsonNode& root, const VariantSpec& manifest) {
  std::vector<StatePair> states;
  if (!root.Has("states")) return states;
  std::set<size_t> inputs, outputs;
  for (const JsonNode& node : root.Get("states").Items()) {
    const StatePair pair{NumberOf(node.Get("input"), manifest.inputs),
                         NumberOf(node.Get("output"), manifest.outputs),
                         node.Has("in_place") && node.Get("in_place").Truth()};
    const TensorSpec& input = manifest.inputs[pair.input];
    const TensorSpec& output = manifest.outputs[pair.output];
    if (!inputs.insert(pair.input).second) node.Fail("repeats the input \"" + input.name + "\"");
    if (!outputs.insert(pair.output).second) node.Fail("repeats the output \"" + output.name + "\"");
    if (input.dtype != output.dtype || input.shape != output.shape || output.bound.axis >= 0) {
      node.Fail("joins " + Describe(*output.dtype, output.shape) + " and " +
                Describe(*input.dtype, input.shape));
    }
    states.push_back(pair);
  }
  return states;
}

// Each param is loaded once: a name that stands there many times would be copied as often.
std::vector<std::string> ReadParamsOrder(const JsonNode& root) {
  const JsonNode list = root.Get("params_order");  // required: a missing list is not an empty one
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const JsonNode& node : list.Items()) {
    names.push_back(node.Text());
    if (!seen.insert(names.back()).second) node.Fail("repeats the name \"" + names.back() + "\"");
  }
  return names;
}

VariantSpec ReadVariant(const JsonNode& node, const std::string& name) {
  return {name, node.Get("entry").Text(), ReadSpecs(node, "inputs"), ReadSpecs(node, "outputs"),
          ReadParamsOrder(node)};
}

bool IsLike(const std::vector<TensorSpec>& specs, const std::vector<TensorSpec>& others) {
  return std::equal(specs.begin(), specs.end(), others.begin(), others.end(),
                    [](const TensorSpec& spec, const TensorSpec& other) {
                      return spec.name == other.name && spec.dtype == other.dtype &&
                             spec.shape.size() == other.shape.size() &&
                             spec.bound.axis == other.bound.axis && spec.bound.count == other.bound.count;
                    });
}

// What the manifest itself says is the only variant, or else the first one.
std::vector<VariantSpec> ReadVariants(const JsonNode& root) {
  std::vector<VariantSpec> variants;
  if (!root.Has("variants")) {
    variants.push_back(ReadVariant(root, ""));
    return variants;
  }
  const JsonNode list = root.Get("variants");
  if (root.Has("states") || root.Has("pictures") || root.Has("sounds")) {
    list.Fail("is there beside a state, or steps for pictures or sounds");
  }
  std::set<std::string> names;
  for (const JsonNode& node : list.Items()) {
    if (variants.size() == kMostVariants) list.Fail("has more than 64 items");
    VariantSpec variant = ReadVariant(node, node.Get("name").Text());
    if (variant.name.empty() || !names.insert(variant.name).second) {
      node.Get("name").Fail("is empty, or that of another variant");
    }
    const bool is_like = variants.empty() || (IsLike(variants[0].inputs, variant.inputs) &&
                                              IsLike(variants[0].outputs, variant.outputs));
    if (!is_like) node.Fail("has other inputs or outputs than the first variant");
    variants.push_back(std::move(variant));
  }
  if (variants.empty()) list.Fail("is empty");
  return variants;
}

// Each shape is an affine function of the size: that of the first variant is its value at the least one, and so on.
std::optional<Dynamic> ReadDynamic(const JsonNode& root, const std::vector<VariantSpec>& variants) {
  if (!root.Has("dynamic")) return std::nullopt;
  const JsonNode node = root.Get("dynamic");
  const Dynamic dynamic{node.Get("dimension").Text(), node.Get("least").Integer(),
                        node.Get("greatest").Integer()};
  if (dynamic.least < 1 || dynamic.greatest <= dynamic.least || dynamic.greatest > kLargestSize) {
    node.Fail("has impossible sizes");
  }
  if (variants.size() < 2) node.Fail("is there without variants");
  for (const VariantSpec* variant : {&variants.front(), &variants.back()}) {
    for (const std::vector<TensorSpec>* specs : {&variant->inputs, &variant->outputs}) {
      for (const TensorSpec& spec : *specs) {
        for (const int64_t extent : spec.shape) {
          if (extent > kLargestTensors) node.Fail("has variants with impossible shapes");
        }
      }
    }
  }
  return dynamic;
}

int64_t AtSize(int64_t low, int64_t high, const Dynamic& dynamic, int64_t size, bool* is_whole) {
  const int64_t range = dynamic.greatest - dynamic.least;
  const int64_t product = (high - low) * (size - dynamic.least);  // 2^33 times 2^28 at most
  *is_whole = *is_whole && product % range == 0;
  return low + product / range;
}

// The library's code-generation target says what computes.
DLDeviceType ReadDevice(const JsonNode& target) {
  const JsonNode kind = target.Get("kind");
  if (kind.Text() == "llvm") return kDLCPU;
  if (kind.Text() == "opencl") return kDLOpenCL;
  kind.Fail("is \"" + kind.Text() + "\", which this runtime does not know");
}

FileDigest DigestIn(const Digests& digests, const std::string& path) {
  if (digests.empty()) return {};
  const auto found = digests.find(path.substr(path.rfind('/') + 1));
  if (found != digests.end()) return found->second;
  throw Fault(kExitUntrusted, "the file is not among the signed files", path);
}

}  // namespace

FileDigest Manifest::DigestOf(const std::string& file) const { return DigestIn(digests, file); }

size_t Manifest::Find(const std::string& variant) const {
  std::string known;
  for (size_t i = 0; i < variants.size(); ++i) {
    if (variants[i].name == variant) return i;
    known += (i > 0 ? ", " : "") + variants[i].name;
  }
  throw Fault(kExitUsage, "the release has no variant \"" + variant + "\"" +
                              (known.empty() ? ", and none at all" : ": it has " + known));
}

std::optional<VariantSpec> Manifest::AtSize(int64_t size) const {
  if (!dynamic || size < dynamic->least || size > dynamic->greatest) return std::nullopt;
  VariantSpec variant = variants.back();
  variant.name = dynamic->dimension + "-" + std::to_string(size);
  bool is_whole = true;
  const auto resize = [&](std::vector<TensorSpec>* specs, const std::vector<TensorSpec>& least) {
    for (size_t i = 0; i < specs->size(); ++i) {
      std::vector<int64_t>& shape = (*specs)[i].shape;
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        shape[axis] = edge::AtSize(least[i].shape[axis], shape[axis], *dynamic, size, &is_whole);
      }
    }
  };
  resize(&variant.inputs, variants.front().inputs);
  resize(&variant.outputs, variants.front().outputs);
  if (!is_whole) return std::nullopt;
  return variant;
}

int64_t Manifest::SizeIn(const std::string& variant) const {
  if (!dynamic) return -1;
  const std::string prefix = dynamic->dimension + "-";
  const std::string digits = variant.compare(0, prefix.size(), prefix) == 0 ? variant.substr(prefix.size()) : "";
  constexpr size_t kMostDigits = 9;
  const bool is_size = !digits.empty() && digits.size() <= kMostDigits && digits[0] != '0' &&
                       digits.find_first_not_of("0123456789") == std::string::npos;
  return is_size ? std::stoll(digits) : -1;
}

Manifest ReadManifest(const std::string& release, const Digests& digests) {
  const std::string path = release + "/manifest.json";
  const MappedFile file(path, DigestIn(digests, path));
  if (file.bytes().size() > kLargestManifest) {
    throw Fault(kExitInput, "the manifest has more than 1 MiB", file.path());
  }
  const JsonNode root = JsonNode::ParseObject(file.bytes(), file.path());
  Manifest manifest;
  manifest.path = file.path();
  manifest.sha256 = HexSha256(file.bytes());
  manifest.name = root.Get("name").Text();
  if (root.Has("board")) manifest.board = root.Get("board").Text();  // asked for by signers alone
  manifest.digests = digests;
  const JsonNode versions = root.Get("versions");
  manifest.tvm = versions.Get("tvm").Text();
  manifest.tvm_ffi = versions.Get("tvm_ffi").Text();
  manifest.library = PathInside(release, root.Get("library").Text(), file.path());
  manifest.params = PathInside(release, root.Get("params").Text(), file.path());
  manifest.variants = ReadVariants(root);
  manifest.dynamic = ReadDynamic(root, manifest.variants);
  const VariantSpec& first = manifest.variants.front();
  manifest.states = ReadStates(root, first);
  manifest.cpu_features = root.TextList("cpu_features");
  manifest.device = ReadDevice(root.Get("target"));
  if (root.Has("pictures")) {
    manifest.pictures = ReadPicturePlan(root.Get("pictures"), first.inputs, first.outputs);
  }
  if (root.Has("sounds")) {
    manifest.sounds = ReadSoundPlan(root.Get("sounds"), first.inputs, first.outputs, manifest.states);
  }
  if (root.Has("texts")) manifest.texts = ReadTextPlan(root.Get("texts"));
  return manifest;
}

}  // namespace edge
