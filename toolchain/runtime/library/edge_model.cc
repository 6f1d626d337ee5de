// See edge_model.h. No exception leaves a function here: each becomes a status and a line of text.
#include "edge_model.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../memory/recycler.h"
#include "../model/device.h"
#include "../model/fault.h"
#include "../model/host_tensor.h"
#include "../model/manifest.h"
#include "../model/model.h"
#include "../model/stage.h"
#include "../model/state.h"
#include "../pictures/decoder.h"
#include "../pictures/pictures.h"
#include "../sounds/sounds.h"
#include "../threads/launcher.h"
#include "../threads/shared_pools.h"
#include "../trust/approval.h"
#include "crops.h"
#include "instrument.h"

namespace edge {
namespace {

using tvm::ffi::Tensor;

constexpr char kVersion[] = "{\"device\":\"" EDGE_VERSION "\",\"tvm\":\"" EDGE_TVM_VERSION
                            "\",\"tvm_ffi\":\"" EDGE_FFI_VERSION "\"}";
constexpr size_t kDigestLength = 64;

thread_local std::string last_error;

int Fail(int code, const std::string& what, const std::string& file) {
  last_error = OneLine(what) + (file.empty() ? "" : " (" + OneLine(file) + ")");
  return code;
}

// Runs what a function does, and turns what it throws into what the function returns.
template <typename Work>
int Guarded(Work work) {
  last_error.clear();
  try {
    work();
    return EDGE_OK;
  } catch (const Fault& fault) {
    return Fail(fault.code(), fault.what(), fault.file());
  } catch (const std::bad_alloc&) {
    return Fail(CurrentStage().code, CurrentStage().doing + " failed: out of memory",
                CurrentStage().file);
  } catch (const std::exception& error) {  // of TVM or of the standard library
    return Fail(CurrentStage().code, CurrentStage().doing + " failed: " + error.what(),
                CurrentStage().file);
  }
}

void Require(bool holds, const char* what) {
  if (!holds) throw Fault(kExitUsage, what);
}

// Fills as much of the caller's struct as the caller knows of.
template <typename Struct>
void Give(Struct value, Struct* result, const char* what) {
  Require(result != nullptr && result->size >= sizeof(result->size), what);
  value.size = std::min(result->size, sizeof(Struct));
  memcpy(static_cast<void*>(result), &value, value.size);
}

edge_options Taken(const edge_options* options) {
  edge_options taken = EDGE_OPTIONS;
  if (options == nullptr) return taken;
  Require(options->size >= sizeof(options->size), "options.size is not set: use EDGE_OPTIONS");
  memcpy(static_cast<void*>(&taken), options, std::min(options->size, sizeof(taken)));
  Require(taken.threads >= EDGE_ALL_CPUS, "options.threads is below EDGE_ALL_CPUS");
  Require(taken.priority >= 0 && taken.priority <= 99, "options.priority is not between 0 and 99");
  Require(taken.cpu_count >= 0 && (taken.cpu_count == 0) == (taken.cpus == nullptr),
          "options.cpus and options.cpu_count do not agree");
  Require(taken.own_threads == 0 || taken.own_threads == 1, "options.own_threads is not 0 or 1");
  Require(taken.executor == nullptr || (taken.priority == 0 && taken.pin == 0 && taken.cpus == nullptr),
          "options.executor has threads of its own: leave out priority, pin and cpus");
  return taken;
}

// Those that the application names, each of which it may use.
std::vector<int> NamedCpus(const edge_options& options) {
  const std::vector<int> cpus(options.cpus, options.cpus + options.cpu_count);
  const std::vector<int> usable = ChooseCpus(0);
  for (size_t i = 0; i < cpus.size(); ++i) {
    const bool twice = std::find(cpus.begin(), cpus.begin() + static_cast<ptrdiff_t>(i), cpus[i]) !=
                       cpus.begin() + static_cast<ptrdiff_t>(i);
    if (!twice && std::find(usable.begin(), usable.end(), cpus[i]) != usable.end()) continue;
    throw Fault(kExitUsage, "options.cpus has " + std::to_string(cpus[i]) +
                                (twice ? " twice" : ", which is not a CPU that this process may use"));
  }
  if (options.threads > options.cpu_count) {
    throw Fault(kExitUsage, "options.threads is " + std::to_string(options.threads) + ", and options.cpus has " +
                                std::to_string(options.cpu_count));
  }
  return cpus;
}

PoolOptions PoolFrom(const edge_options& options) {
  PoolOptions pool;
  pool.pinned = options.pin != 0;
  pool.priority = options.priority;
  pool.execute = options.executor;
  pool.context = options.executor_context;
  std::vector<int> cpus;
  if (options.cpus != nullptr) {
    cpus = NamedCpus(options);
  } else if (options.threads != 0) {
    cpus = ChooseCpus(std::max(options.threads, 0));
  }
  const int all = static_cast<int>(cpus.size());
  pool.threads = std::max(1, options.threads == EDGE_ALL_CPUS ? all : std::min(options.threads, all));
  if (pool.pinned || options.cpus != nullptr) pool.cpus = cpus;
  if (options.spin_us != 0) pool.spin = std::chrono::microseconds(std::max(options.spin_us, 0));
  return pool;
}

std::shared_ptr<ThreadPool> Started(const edge_options& options) {
  EnterStage(kExitUsage, "starting the threads", "");
  const PoolOptions pool = PoolFrom(options);
  return options.own_threads != 0 ? std::make_shared<ThreadPool>(pool) : SharedPool(pool);
}

std::string Resolved(const std::string& path) {
  const std::unique_ptr<char, decltype(&free)> found(realpath(path.c_str(), nullptr), &free);
  return found ? found.get() : "";
}

std::string Existing(const char* path) {
  Require(path != nullptr && *path != '\0', "no release is named");
  const std::string found = Resolved(path);
  if (found.empty()) throw Fault(kExitInput, std::string("there is no release: ") + strerror(errno), path);
  return found;
}

std::string DigestOf(const std::string& folder) {
  const std::string name = folder.substr(folder.rfind('/') + 1);
  const bool is_one = name.size() == kDigestLength &&
                      name.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_one ? name : "";
}

// What follows the third number of a version of tvm-ffi leaves its binary interface alone.
std::string AbiOf(const std::string& version) {
  size_t end = 0;
  for (int numbers = 0; numbers < 3 && end < version.size(); ++numbers) {
    end = version.find_first_not_of("0123456789", end + (numbers > 0));
    if (end == std::string::npos) end = version.size();
  }
  return version.substr(0, end);
}

void CheckVersions(const Manifest& manifest) {
  for (const auto& [what, theirs, ours] :
       {std::tuple<const char*, std::string, std::string>{"TVM", manifest.tvm, EDGE_TVM_VERSION},
        {"TVM-FFI", AbiOf(manifest.tvm_ffi), AbiOf(EDGE_FFI_VERSION)}}) {
    if (theirs == ours) continue;
    throw Fault(kExitLoad,
                std::string("the release was compiled with ") + what + " " + theirs +
                    ", and this program has " + what + " " + ours,
                manifest.path);
  }
}

// A model's library takes TVM's functions from what every library of the process sees. This one is
// not among that where it was opened for somebody alone, as plug-ins are.
void ShowOurFunctions() {
  Dl_info ours;
  if (dladdr(reinterpret_cast<void*>(&edge_open), &ours) != 0 && ours.dli_fname != nullptr) {
    dlopen(ours.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  }
  dlerror();
  if (dlsym(RTLD_DEFAULT, "TVMFFIErrorSetRaisedFromCStrParts") == nullptr) {
    throw Fault(kExitLoad,
                "this program hides the library's functions: link it with -rdynamic, or use the "
                "shared library");
  }
}

// Who stands for a release, where the device asks for that.
std::optional<Approval> Approved(const std::string& folder, const edge_options& options) {
  EnterStage(kExitUntrusted, "checking the signatures", folder);
  const auto trust = ReadTrust(options.trust != nullptr ? options.trust : kTrustFolder);
  if (!trust) return {};
  return Approve(folder, *trust);
}

Manifest Read(const std::string& folder, const std::optional<Approval>& approval) {
  EnterStage(kExitInput, "reading the manifest", folder + "/manifest.json");
  Manifest manifest = ReadManifest(folder, approval ? approval->digests : Digests());
  if (approval) CheckAgrees(approval->statement, manifest);
  CheckVersions(manifest);
  CheckCpuFeatures(manifest.cpu_features, manifest.path);
  return manifest;
}

Model Loaded(const Manifest& manifest) {
  ShowOurFunctions();
  EnterStage(kExitLoad, "loading the library", manifest.library);
  return Model(manifest);
}

std::string Describe(const VariantSpec& variant) {
  std::string text;
  for (const TensorSpec& spec : variant.inputs) {
    text += (text.empty() ? "" : ", ") + spec.name + " " + Describe(*spec.dtype, spec.shape);
  }
  return variant.name.empty() ? text : variant.name + " (" + text + ")";
}

// What an application asks for, as a variant has it.
std::string Describe(const VariantSpec& variant, const std::vector<edge_shape>& shapes) {
  std::string text;
  for (const edge_shape& shape : shapes) {
    const TensorSpec& spec = variant.inputs[static_cast<size_t>(shape.input)];
    const std::vector<int64_t> sizes(shape.sizes, shape.sizes + shape.rank);
    text += (text.empty() ? "" : ", ") + spec.name + " " + Describe(*spec.dtype, sizes);
  }
  return text;
}

bool HasShapes(const VariantSpec& variant, const std::vector<edge_shape>& shapes) {
  return std::all_of(shapes.begin(), shapes.end(), [&variant](const edge_shape& shape) {
    const std::vector<int64_t>& own = variant.inputs[static_cast<size_t>(shape.input)].shape;
    return std::equal(own.begin(), own.end(), shape.sizes, shape.sizes + shape.rank);
  });
}

// The size of the dynamic dimension that some shapes may have.
std::vector<int64_t> SizesOf(const edge::Manifest& manifest, const std::vector<edge_shape>& shapes) {
  const edge::Dynamic& dynamic = *manifest.dynamic;
  std::vector<int64_t> sizes;
  for (const edge_shape& shape : shapes) {
    const auto number = static_cast<size_t>(shape.input);
    const std::vector<int64_t>& least = manifest.variants.front().inputs[number].shape;
    const std::vector<int64_t>& greatest = manifest.variants.back().inputs[number].shape;
    for (size_t axis = 0; axis < least.size() && axis < static_cast<size_t>(shape.rank); ++axis) {
      const int64_t range = greatest[axis] - least[axis];
      if (range <= 0 || shape.sizes[axis] < least[axis] || shape.sizes[axis] > greatest[axis]) continue;
      sizes.push_back(dynamic.least +
                      (shape.sizes[axis] - least[axis]) * (dynamic.greatest - dynamic.least) / range);
    }
  }
  return sizes;
}

std::vector<edge_shape> Taken(const edge_shape* shapes, int32_t count, const VariantSpec& variant) {
  Require(count >= 0 && (shapes != nullptr || count == 0), "there are no shapes");
  const std::vector<edge_shape> taken(shapes, shapes + count);
  for (const edge_shape& shape : taken) {
    Require(shape.input >= 0 && static_cast<size_t>(shape.input) < variant.inputs.size(),
            "there is no such input");
    Require(shape.rank >= 0 && (shape.sizes != nullptr || shape.rank == 0), "a shape has no sizes");
  }
  return taken;
}

edge_tensor Described(const TensorSpec& spec) {
  edge_tensor tensor = EDGE_TENSOR;
  tensor.name = spec.name.c_str();
  tensor.dtype = spec.dtype->name;
  tensor.rank = static_cast<int32_t>(spec.shape.size());
  tensor.shape = spec.shape.data();
  tensor.bytes = static_cast<size_t>(spec.dtype->bytes);
  for (int64_t extent : spec.shape) tensor.bytes *= static_cast<size_t>(extent);
  return tensor;
}

pictures::Picture Taken(const edge_image* image) {
  Require(image != nullptr && image->size >= sizeof(image->size), "image.size is not set: use EDGE_IMAGE");
  edge_image taken = EDGE_IMAGE;
  memcpy(static_cast<void*>(&taken), image, std::min(image->size, sizeof(taken)));
  return {taken.format, taken.width, taken.height, static_cast<const uint8_t*>(taken.data), taken.bytes,
          taken.stride, static_cast<const uint8_t*>(taken.chroma), taken.chroma_bytes, taken.chroma_stride};
}

edge_image Given(const pictures::Picture& picture) {
  return {sizeof(edge_image), picture.format, picture.width, picture.height, picture.data, picture.bytes,
          picture.stride, picture.chroma, picture.chroma_bytes, picture.chroma_stride};
}

sounds::Sound Taken(const edge_audio* audio) {
  Require(audio != nullptr && audio->size >= sizeof(audio->size), "audio.size is not set: use EDGE_AUDIO");
  edge_audio taken = EDGE_AUDIO;
  memcpy(static_cast<void*>(&taken), audio, std::min(audio->size, sizeof(taken)));
  return {taken.format, taken.rate, taken.channels, static_cast<const uint8_t*>(taken.data), taken.bytes};
}

// SentencePiece marks the beginning of a word so.
constexpr char kWordMark[] = "\xE2\x96\x81";

// Writes what labels say; spaces at the ends are left out.
void WriteText(const std::vector<std::string>& labels, int64_t space, const std::vector<steps::Object>& objects,
               std::string* text) {
  text->clear();
  const auto add = [text](const char* part, size_t size) {
    if (!text->empty() || size != 1 || *part != ' ') text->append(part, size);
  };
  for (const steps::Object& object : objects) {
    const std::string& label = labels[static_cast<size_t>(object.label)];
    if (object.label == space) {
      add(" ", 1);
      continue;
    }
    for (size_t at = 0; at < label.size();) {
      const bool is_mark = label.compare(at, sizeof kWordMark - 1, kWordMark) == 0;
      add(is_mark ? " " : &label[at], 1);
      at += is_mark ? sizeof kWordMark - 1 : 1;
    }
  }
  while (!text->empty() && text->back() == ' ') text->pop_back();
}

// The most bytes of a text that the steps of a release for pictures read.
size_t LongestText(const PicturePlan& steps) {
  size_t longest = 0;
  for (const std::string& label : steps.labels) longest = std::max(longest, label.size());
  return steps.plan.head == pictures::kLabels ? static_cast<size_t>(steps.plan.most) * longest : 0;
}

// What a network leaves in the pool of its device's memory is no other one's.
void ClearPools() {
  tvm::ffi::Function::GetGlobalRequired("vm.builtin.memory_manager.clear")();
}

}  // namespace

class OpenModel {
 public:
  OpenModel(const char* release, const edge_options& options)
      : path_(release ? release : ""),
        folder_(Existing(release)),
        digest_(DigestOf(folder_)),
        approval_(Approved(folder_, options)),
        manifest_(Read(folder_, approval_)),
        launcher_(Started(options)),
        model_(Loaded(manifest_)),
        state_(manifest_, model_.device()) {
    EnterStage(kExitInput, "reading the parameters", manifest_.params);
    params_ = LoadParams(manifest_);
    Select(0);
    if (manifest_.pictures) {
      pipeline_.emplace(manifest_.pictures->plan, manifest_.pictures->table.data());
      objects_.reserve(static_cast<size_t>(manifest_.pictures->plan.most));
      points_.reserve(static_cast<size_t>(manifest_.pictures->plan.most) *
                      static_cast<size_t>(manifest_.pictures->plan.points));
      text_.reserve(LongestText(*manifest_.pictures));
    }
    if (manifest_.sounds) {
      hearing_.emplace(manifest_.sounds->plan);
      objects_.reserve(static_cast<size_t>(manifest_.sounds->plan.most));
    }
  }

  bool Changed() const {
    const std::string now = Resolved(path_);
    return !now.empty() && now != folder_;
  }

  edge_release Release() const {
    return {sizeof(edge_release), manifest_.name.c_str(), digest_.c_str(), folder_.c_str(),
            approval_ ? approval_->statement.sequence : 0, NameOf(params_.guard)};
  }

  const Manifest& manifest() const { return manifest_; }
  const Model& model() const { return model_; }

  const VariantSpec& variant() const { return resized_ ? *resized_ : manifest_.variants[selected_]; }

  // What was computed for other shapes is no output of this variant.
  void Select(size_t number) {
    EnterStage(kExitLoad, "giving the device its memory", manifest_.library);
    model_.Select(manifest_.variants[number], params_);
    if (number != selected_ || resized_) outputs_.clear();
    if (resized_) model_.Forget(resized_->name);
    resized_.reset();
    selected_ = number;
  }

  // A variant by its name, which may be that of any size of a dynamic dimension.
  void Select(const std::string& name) {
    const auto listed = std::find_if(manifest_.variants.begin(), manifest_.variants.end(),
                                     [&name](const VariantSpec& variant) { return variant.name == name; });
    const std::optional<VariantSpec> resized = manifest_.AtSize(manifest_.SizeIn(name));
    if (listed != manifest_.variants.end() || !resized) return Select(manifest_.Find(name));
    Select(*resized);
  }

  // A size that no variant has: its inputs have memory until another size is selected.
  void Select(const VariantSpec& variant) {
    if (resized_ && resized_->name == variant.name) return;
    EnterStage(kExitLoad, "giving the device its memory", manifest_.library);
    model_.Select(variant, params_);
    outputs_.clear();
    if (resized_) model_.Forget(resized_->name);
    resized_ = variant;
    selected_ = manifest_.variants.size();
    has_run_.erase(selected_);
  }

  // The selected variant stays, if it has these shapes.
  void Select(const std::vector<edge_shape>& shapes) {
    if (HasShapes(variant(), shapes)) return;
    if (manifest_.dynamic) return SelectSize(shapes);
    std::string available;
    for (size_t i = 0; i < manifest_.variants.size(); ++i) {
      if (HasShapes(manifest_.variants[i], shapes)) return Select(i);
      available += (i > 0 ? "; " : "") + Describe(manifest_.variants[i]);
    }
    throw Fault(kExitUsage, "no variant takes " + Describe(variant(), shapes) + "; available: " + available);
  }

  // The size is what the shapes say; sizes that the reference has are variants.
  void SelectSize(const std::vector<edge_shape>& shapes) {
    const Dynamic& dynamic = *manifest_.dynamic;
    for (const int64_t size : SizesOf(manifest_, shapes)) {
      const std::optional<VariantSpec> resized = manifest_.AtSize(size);
      if (resized && HasShapes(*resized, shapes)) return Select(resized->name);
    }
    throw Fault(kExitUsage, "no size of " + dynamic.dimension + " has " + Describe(variant(), shapes) +
                                "; available: every size from " + Describe(manifest_.variants.front()) +
                                " to " + Describe(manifest_.variants.back()));
  }

  edge_tensor Input(size_t number) const {
    edge_tensor tensor = Described(variant().inputs[number]);
    tensor.name = manifest_.variants.front().inputs[number].name.c_str();  // which outlives a size
    tensor.data = model_.InputData(number);
    for (const StatePair& pair : manifest_.states) {
      if (pair.input == number) tensor.state = static_cast<int32_t>(pair.output);
    }
    return tensor;
  }

  edge_tensor Output(size_t number) const {
    const TensorSpec& spec = variant().outputs[number];
    edge_tensor tensor = Described(spec);
    tensor.name = manifest_.variants.front().outputs[number].name.c_str();
    tensor.bound_axis = spec.bound.axis;
    for (const StatePair& pair : manifest_.states) {
      if (pair.output == number) tensor.state = static_cast<int32_t>(pair.input);
    }
    if (outputs_.empty() || !outputs_[number].defined()) return tensor;
    tensor.data = DataOf(outputs_[number]);
    if (spec.bound.axis >= 0) tensor.valid = Count(spec);
    return tensor;
  }

  void Run() {
    Compute([this] { return model_.Run(); }, [](std::vector<Tensor>*) {});
  }

  // A step that fails leaves the state as it was, or unusable where it is changed in place.
  void Step() {
    Compute(
        [this] {
          state_.Begin();
          return model_.Step(state_);
        },
        [this](std::vector<Tensor>* outputs) { state_.Take(outputs); });
  }

  // Decodes a file; other pictures are as they are.
  pictures::Picture Raw(const pictures::Picture& picture) {
    if (!pictures::IsFile(picture.format)) return picture;
    EnterStage(kExitUsage, "decoding the picture", "");
    pictures::Reason reason;
    pictures::Picture pixels;
    if (!decoder_.Open(picture.format, &reason)) throw Fault(kExitLoad, reason.text);
    Require(decoder_.Decode(picture, &pixels, &reason), reason.text);
    return pixels;
  }

  edge_objects Run(const pictures::Picture& given) {
    Require(pipeline_.has_value(), "the release has no steps for pictures: build it with --pre");
    const pictures::Picture picture = Raw(given);
    EnterStage(kExitUsage, "reading the picture", "");
    objects_.clear();
    has_masks_ = false;
    pictures::Reason reason;
    const edge_tensor input = Input(0);
    Require(pipeline_->Prepare(picture, input.data, input.bytes, &reason), reason.text);
    Run();
    const PicturePlan& steps = *manifest_.pictures;
    if (steps.output >= 0) {
      const auto [scores, count] = Scores(steps.output);
      const auto [boxes, box_count] = steps.boxes < 0 ? Scored() : Scores(steps.boxes);
      pictures::Values levels[pictures::kMostLevels] = {};
      for (size_t i = 0; i < steps.levels.size(); ++i) {
        const auto [values, numbers] = Scores(steps.levels[i]);
        levels[i] = {values, numbers};
      }
      if (!pipeline_->Find(picture.width, picture.height, {scores, count, boxes, box_count, levels}, &reason)) {
        throw Fault(kExitRunFailed, reason.text);
      }
      Label(pipeline_->objects(), steps.labels);
      Point(pipeline_->points(), steps.plan.points);
      has_masks_ = steps.masks >= 0;
    }
    text_.clear();
    if (steps.plan.head == pictures::kLabels) WriteText(steps.labels, steps.space, pipeline_->objects(), &text_);
    return Found();
  }

  // Runs another model on the part of a picture that each of the best boxes has. `enter` is called with the model that
  // works from then on, and the number of its box from 1.
  template <typename Enter>
  edge_crops Run(const pictures::Picture& given, OpenModel* second, size_t most, Enter enter) {
    enter(second, 0);
    const auto& cut = second->manifest_.pictures;
    Require(cut && cut->output >= 0, "the release finds nothing in a picture: build it with --pre and --post");
    enter(this, 0);
    const auto& own = manifest_.pictures;
    Require(own && pictures::FindsBoxes(own->plan.head), "the release finds no boxes: build it with --post yolo");
    const pictures::Picture picture = Raw(given);
    Run(picture);
    most = std::min(most, static_cast<size_t>(own->plan.most));
    Require(crops_.Begin(most, cut->plan, LongestText(*cut)), "there are too many key points for so many boxes");
    enter(second, 0);
    second->pipeline_->Reserve(picture.width, picture.height);
    for (size_t i = 0; i < std::min(most, objects_.size()); ++i) {
      enter(second, i + 1);
      const edge_object& box = objects_[i];
      pictures::Picture part = {};
      pictures::Area area = {};
      pictures::Reason reason;
      const bool has_pixels = pictures::Crop(picture, {0, 0, box.left, box.top, box.right, box.bottom}, &part, &area, &reason);
      crops_.Add(&box, has_pixels ? second->Run(part) : edge_objects EDGE_OBJECTS, area);
    }
    return crops_.Found(static_cast<int32_t>(objects_.size()));
  }

  // Fills a mask, or only its place where there is no memory for it.
  void Mask(size_t number, edge_mask* mask) {
    EnterStage(kExitUsage, "making a mask", "");
    Require(pipeline_ && manifest_.pictures->masks >= 0, "the release has no masks: build it with --post yolo:masks=NAME");
    Require(has_masks_, "the last run had no picture, so there are no masks");
    Require(number < objects_.size(), "there is no such object");
    const pictures::Area area = pipeline_->MaskArea(number);
    mask->left = area.left;
    mask->top = area.top;
    mask->width = std::max(area.width, 0);
    mask->height = area.width > 0 ? std::max(area.height, 0) : 0;
    if (mask->data == nullptr || mask->height == 0) return;
    const size_t width = static_cast<size_t>(mask->width), stride = mask->stride == 0 ? width : mask->stride;
    Require(stride >= width, "mask.stride is less than its width");
    // Without a product that could overflow.
    const bool fits = mask->bytes >= width && (mask->bytes - width) / stride >= static_cast<size_t>(mask->height) - 1;
    Require(fits, "mask.bytes are fewer than its size and stride need");
    const auto [prototypes, count] = Scores(manifest_.pictures->masks);
    pictures::Reason reason;
    if (!pipeline_->FillMask(number, prototypes, count, mask->data, stride, &reason)) {
      throw Fault(kExitRunFailed, reason.text);
    }
  }

  edge_objects Run(const sounds::Sound& sound) {
    EnterSound();
    const SoundPlan& steps = *manifest_.sounds;
    sounds::Reason reason;
    int32_t windows = 0;
    Require(hearing_->Open(sound, &windows, &reason), reason.text);
    if (!manifest_.states.empty()) state_.Reset();  // each sound is a stream of its own
    HearAll([&] {
      for (int32_t window = 0; window < windows; ++window) {
        RunWindow(window);
        if (steps.output < 0) continue;
        const auto [scores, count] = Scores(steps.output);
        if (!hearing_->Find(window, scores, count, &reason)) throw Fault(kExitRunFailed, reason.text);
      }
    });
    if (!manifest_.states.empty()) state_.Reset();
    if (steps.output >= 0) Label(hearing_->objects(), steps.labels);
    text_.clear();
    if (steps.plan.head == sounds::kLabels) WriteText(steps.labels, steps.space, hearing_->objects(), &text_);
    return Found();
  }

  // Runs each window that the samples complete.
  void Stream(const sounds::Sound& sound, edge_heard heard, void* context) {
    EnterSound();
    sounds::Reason reason;
    Require(hearing_->Continue(sound, &reason), reason.text);
    HearAll([&] {
      for (int64_t window = 0; hearing_->NextWindow(&window);) Hear(window, heard, context);
    });
  }

  void EndStream(edge_heard heard, void* context) {
    EnterSound();
    HearAll([&] {
      for (int64_t window = 0; hearing_->LastWindow(&window);) Hear(window, heard, context);
    });
    state_.Reset();
  }

  const char* Text(const int64_t* numbers, size_t count) {
    Require(manifest_.texts.has_value(), "the release has no vocabulary: build it with --post tokens:labels=FILE");
    Require(numbers != nullptr || count == 0, "there are no numbers of tokens");
    Require(WriteTokens(*manifest_.texts, numbers, count, &tokens_text_), "a number is not that of a token");
    return tokens_text_.c_str();
  }

  void Reset() {
    CheckIdle();
    if (hearing_) hearing_->EndStream();
    state_.Reset();
  }

  // While a function of the application has the results of a window, their memory must stay as it is.
  void CheckIdle() const {
    Require(!is_heard_, "the function that takes the windows of a stream must not use the model but for its outputs");
  }

  State& state() { return state_; }
  const State& state() const { return state_; }

 private:
  using Scored = std::pair<const float*, size_t>;

  void EnterSound() {
    Require(hearing_.has_value(), "the release has no steps for sounds: build it with --pre wav:rate=N");
    CheckIdle();
    EnterStage(kExitUsage, "reading the sound", "");
    objects_.clear();
  }

  // Makes the input of a window, and runs the model: a step, if it has a state.
  void RunWindow(int64_t window) {
    sounds::Reason reason;
    const edge_tensor input = Input(manifest_.sounds->input);
    Require(hearing_->Prepare(window, input.data, input.bytes, &reason), reason.text);
    if (manifest_.states.empty()) {
      Run();
    } else {
      Step();
    }
  }

  // Runs windows. If that fails, the stream ends: a window is missing, and the state of the next one.
  template <typename Windows>
  void HearAll(Windows windows) {
    try {
      windows();
    } catch (...) {
      is_heard_ = false;
      hearing_->EndStream();
      state_.Reset();
      throw;
    }
  }

  void Hear(int64_t window, edge_heard heard, void* context) {
    const SoundPlan& steps = *manifest_.sounds;
    objects_.clear();
    text_.clear();
    RunWindow(window);
    if (steps.output >= 0) {
      sounds::Reason reason;
      const auto [scores, count] = Scores(steps.output);
      if (!hearing_->FindNext(window, scores, count, &reason)) throw Fault(kExitRunFailed, reason.text);
      Label(hearing_->objects(), steps.labels);
    }
    if (heard == nullptr) return;
    const edge_objects found = Found();
    is_heard_ = true;
    heard(context, window, &found);
    is_heard_ = false;
  }

  Scored Scores(int64_t number) const {
    const Tensor& output = outputs_[static_cast<size_t>(number)];
    return {reinterpret_cast<const float*>(DataOf(output)), SizeOf(output) / sizeof(float)};
  }

  void Label(const std::vector<steps::Object>& objects, const std::vector<std::string>& labels) {
    for (const steps::Object& object : objects) {
      objects_.push_back({object.label, object.score, object.left, object.top, object.right, object.bottom,
                          labels.empty() ? "" : labels[static_cast<size_t>(object.label)].c_str(), 0, nullptr});
    }
  }

  // Gives each object its key points.
  void Point(const std::vector<pictures::Point>& points, int32_t count) {
    points_.clear();
    for (const pictures::Point& point : points) points_.push_back({point.x, point.y, point.score});
    for (size_t i = 0; i < objects_.size() && count > 0; ++i) {
      objects_[i].point_count = count;
      objects_[i].points = points_.data() + i * static_cast<size_t>(count);
    }
  }

  edge_objects Found() const {
    return {sizeof(edge_objects), static_cast<int32_t>(objects_.size()), sizeof(edge_object), objects_.data(),
            text_.c_str()};
  }

  template <typename Call, typename Keep>
  void Compute(Call call, Keep keep) {
    CheckIdle();
    has_masks_ = false;
    const Recycling recycling(&recycler_);
    // The results of the last run end here: their memory is this one's. That of a device ends below.
    if (model_.device().device_type == kDLCPU) outputs_.clear();
    EnterStage(kExitRunFailed, "running the model", manifest_.library);
    const UseLauncher use(&launcher_);
    std::vector<Tensor> outputs = call();
    CheckOutputs(variant().outputs, outputs, manifest_.path);
    if (has_run_.insert(selected_).second) {
      model_.SpareOutputs(outputs);
      recycler_.Double();
    }
    keep(&outputs);
    outputs_ = std::move(outputs);
    model_.CheckDevice();  // with what the last outputs were
  }

  int64_t Count(const TensorSpec& spec) const {
    for (size_t i = 0; i < variant().outputs.size(); ++i) {
      if (variant().outputs[i].name != spec.bound.count) continue;
      int64_t count = 0;
      if (SizeOf(outputs_[i]) != sizeof(count)) break;
      memcpy(&count, DataOf(outputs_[i]), sizeof(count));
      if (count >= 0 && count <= spec.shape[static_cast<size_t>(spec.bound.axis)]) return count;
      throw Fault(kExitRunFailed, "output \"" + spec.name + "\" claims " + std::to_string(count) +
                                      " elements, which it cannot have");
    }
    throw Fault(kExitInput, "output \"" + spec.name + "\" has no count", manifest_.path);
  }

  const std::string path_;
  const std::string folder_;
  const std::string digest_;
  const std::optional<Approval> approval_;
  const Manifest manifest_;
  Recycler recycler_;
  Launcher launcher_;
  Model model_;
  Params params_;
  size_t selected_ = 0;                 // as many as there are variants: the next one
  std::optional<VariantSpec> resized_;  // a size of the dynamic dimension that no variant has
  State state_;
  std::set<size_t> has_run_;  // the variants that had a first run
  std::vector<Tensor> outputs_;
  pictures::Decoder decoder_;
  std::optional<pictures::Pipeline> pipeline_;
  std::optional<sounds::Pipeline> hearing_;
  std::vector<edge_object> objects_;
  std::string text_, tokens_text_;
  std::vector<edge_point> points_;
  Crops crops_;
  bool has_masks_ = false;  // whether the outputs are those of the picture whose objects these are
  bool is_heard_ = false;  // whether the application has the results of a window
};

}  // namespace edge

struct edge_model {
  edge::OpenModel opened;
};

namespace edge {

void Instrument(edge_model* model, const tvm::ffi::Function& hook) {
  model->opened.model().Instrument(hook);
}

DLDevice DeviceOf(const edge_model* model) { return model->opened.model().device(); }

namespace {

// Runs a picture or a sound.
template <typename Given>
int RunRaw(edge_model* model, const Given* given, edge_objects* objects, const char* doing) {
  return Guarded([&] {
    EnterStage(kExitUsage, doing, "");
    Require(model != nullptr, "there is no model");
    // Before the run: what was found must not be lost.
    Require(objects == nullptr || objects->size >= sizeof(objects->size),
            "objects.size is not set: use EDGE_OBJECTS");
    const edge_objects found = model->opened.Run(Taken(given));
    if (objects != nullptr) Give(found, objects, "objects.size is not set: use EDGE_OBJECTS");
  });
}

}  // namespace

}  // namespace edge

using edge::Give;
using edge::Guarded;
using edge::Require;

extern "C" {

int32_t edge_abi(void) { return EDGE_ABI; }

const char* edge_version(void) { return edge::kVersion; }

const char* edge_error(void) { return edge::last_error.c_str(); }

int edge_open(const char* release, const edge_options* options, edge_model** model) {
  if (model != nullptr) *model = nullptr;
  return Guarded([&] {
    edge::EnterStage(edge::kExitUsage, "opening a release", "");
    Require(model != nullptr, "there is no place for the model");
    *model = new edge_model{{release, edge::Taken(options)}};
  });
}

void edge_close(edge_model* model) {
  if (model == nullptr) return;
  Guarded([&] {
    delete model;
    edge::ClearPools();
  });
}

int edge_release_of(const edge_model* model, edge_release* release) {
  return Guarded([&] {
    Require(model != nullptr, "there is no model");
    Give(model->opened.Release(), release, "release.size is not set: use EDGE_RELEASE_INFO");
  });
}

int edge_changed(const edge_model* model) {
  bool changed = false;
  Guarded([&] { changed = model != nullptr && model->opened.Changed(); });
  return changed ? 1 : 0;
}

int32_t edge_inputs(const edge_model* model) {
  return model == nullptr ? 0 : static_cast<int32_t>(model->opened.variant().inputs.size());
}

int32_t edge_outputs(const edge_model* model) {
  return model == nullptr ? 0 : static_cast<int32_t>(model->opened.variant().outputs.size());
}

int edge_input(edge_model* model, int32_t number, edge_tensor* tensor) {
  return Guarded([&] {
    Require(number >= 0 && number < edge_inputs(model), "there is no such input");
    Give(model->opened.Input(static_cast<size_t>(number)), tensor,
         "tensor.size is not set: use EDGE_TENSOR");
  });
}

int edge_output(edge_model* model, int32_t number, edge_tensor* tensor) {
  return Guarded([&] {
    Require(number >= 0 && number < edge_outputs(model), "there is no such output");
    Give(model->opened.Output(static_cast<size_t>(number)), tensor,
         "tensor.size is not set: use EDGE_TENSOR");
  });
}

int32_t edge_variants(const edge_model* model) {
  if (model == nullptr || model->opened.variant().name.empty()) return 0;
  return static_cast<int32_t>(model->opened.manifest().variants.size());
}

const char* edge_variant(const edge_model* model, int32_t number) {
  if (number == EDGE_SELECTED && edge_variants(model) > 0) return model->opened.variant().name.c_str();
  if (number < 0 || number >= edge_variants(model)) return nullptr;
  return model->opened.manifest().variants[static_cast<size_t>(number)].name.c_str();
}

int edge_variant_input(const edge_model* model, int32_t variant, int32_t input, edge_tensor* tensor) {
  return Guarded([&] {
    Require(variant >= 0 && variant < edge_variants(model), "there is no such variant");
    Require(input >= 0 && input < edge_inputs(model), "there is no such input");
    const auto& spec = model->opened.manifest().variants[static_cast<size_t>(variant)];
    Give(edge::Described(spec.inputs[static_cast<size_t>(input)]), tensor,
         "tensor.size is not set: use EDGE_TENSOR");
  });
}

int edge_select(edge_model* model, const char* variant) {
  return Guarded([&] {
    edge::EnterStage(edge::kExitUsage, "selecting a variant", "");
    Require(model != nullptr, "there is no model");
    Require(variant != nullptr && *variant != '\0', "no variant is named");
    model->opened.Select(std::string(variant));
  });
}

int edge_set_shapes(edge_model* model, int32_t count, const edge_shape* shapes) {
  return Guarded([&] {
    edge::EnterStage(edge::kExitUsage, "selecting a variant", "");
    Require(model != nullptr, "there is no model");
    model->opened.Select(edge::Taken(shapes, count, model->opened.variant()));
  });
}

int edge_run(edge_model* model) {
  return Guarded([&] {
    Require(model != nullptr, "there is no model");
    model->opened.Run();
  });
}

int edge_step(edge_model* model) {
  return Guarded([&] {
    Require(model != nullptr, "there is no model");
    model->opened.Step();
  });
}

int edge_reset(edge_model* model) {
  return Guarded([&] {
    Require(model != nullptr, "there is no model");
    edge::EnterStage(edge::kExitRunFailed, "resetting the state", "");
    model->opened.Reset();
  });
}

int edge_state_save(const edge_model* model, const char* file) {
  return Guarded([&] {
    Require(model != nullptr, "there is no model");
    Require(file != nullptr && *file != '\0', "no file is named");
    edge::EnterStage(edge::kExitUsage, "saving the state", file);
    edge::CheckWritable(file);
    model->opened.state().Save(file);
  });
}

int edge_state_load(edge_model* model, const char* file) {
  return Guarded([&] {
    Require(model != nullptr, "there is no model");
    Require(file != nullptr && *file != '\0', "no file is named");
    edge::EnterStage(edge::kExitInput, "loading the state", file);
    model->opened.CheckIdle();
    model->opened.state().Load(file);
  });
}

int edge_run_image(edge_model* model, const edge_image* image, edge_objects* objects) {
  return edge::RunRaw(model, image, objects, "reading the picture");
}

int edge_decode_image(edge_model* model, const edge_image* file, edge_image* pixels) {
  return Guarded([&] {
    Require(model != nullptr, "there is no model");
    const pictures::Picture picture = edge::Taken(file);
    Require(pictures::IsFile(picture.format), "image.format is not that of a file: EDGE_JPEG or EDGE_PNG");
    Give(edge::Given(model->opened.Raw(picture)), pixels, "pixels.size is not set: use EDGE_IMAGE");
  });
}

int edge_crop_image(const edge_image* image, const edge_object* box, edge_image* crop) {
  return Guarded([&] {
    edge::EnterStage(edge::kExitUsage, "cropping a picture", "");
    Require(box != nullptr, "there is no box");
    const pictures::Object corners = {0, 0, box->left, box->top, box->right, box->bottom};
    pictures::Picture part = {};
    pictures::Area area = {};
    pictures::Reason reason;
    Require(pictures::Crop(edge::Taken(image), corners, &part, &area, &reason), reason.text);
    Give(edge::Given(part), crop, "crop.size is not set: use EDGE_IMAGE");
  });
}

int edge_run_crops(edge_model* first, edge_model* second, const edge_image* image, int32_t most, edge_crops* crops) {
  const edge::OpenModel* at_work = nullptr;
  size_t box = 0;
  const int status = Guarded([&] {
    edge::EnterStage(edge::kExitUsage, "reading the picture", "");
    Require(first != nullptr && second != nullptr, "there is no model");
    Require(first != second, "both models are the same one: open the release twice");
    Require(most >= 1 && most <= pictures::kMostObjects, "`most` is not between 1 and 1000");
    // Before the runs: what was found must not be lost.
    Require(crops != nullptr && crops->size >= sizeof(crops->size), "crops.size is not set: use EDGE_CROPS");
    const auto enter = [&](const edge::OpenModel* model, size_t number) {
      at_work = model;
      box = number;
    };
    const pictures::Picture picture = edge::Taken(image);
    Give(first->opened.Run(picture, &second->opened, static_cast<size_t>(most), enter), crops, "");
  });
  if (status == EDGE_OK || at_work == nullptr) return status;
  std::string who = at_work == &first->opened ? "the first model, " : "the second model, ";
  who += edge::OneLine(at_work->manifest().name) + (box > 0 ? ", in box " + std::to_string(box) : "");
  edge::last_error = who + ": " + edge::last_error;
  return status;
}

int edge_object_mask(edge_model* model, int32_t number, edge_mask* mask) {
  return Guarded([&] {
    Require(model != nullptr, "there is no model");
    Require(mask != nullptr && mask->size >= sizeof(*mask), "mask.size is not set: use EDGE_MASK");
    Require(number >= 0, "there is no such object");
    model->opened.Mask(static_cast<size_t>(number), mask);
  });
}

int edge_run_audio(edge_model* model, const edge_audio* audio, edge_objects* objects) {
  return edge::RunRaw(model, audio, objects, "reading the sound");
}

int edge_stream_audio(edge_model* model, const edge_audio* audio, edge_heard heard, void* context) {
  return Guarded([&] {
    Require(model != nullptr, "there is no model");
    model->opened.Stream(edge::Taken(audio), heard, context);
  });
}

int edge_text(edge_model* model, const int64_t* numbers, size_t count, const char** text) {
  return Guarded([&] {
    edge::EnterStage(edge::kExitUsage, "writing a text", "");
    Require(model != nullptr, "there is no model");
    Require(text != nullptr, "there is no place for the text");
    *text = model->opened.Text(numbers, count);
  });
}

int edge_end_stream(edge_model* model, edge_heard heard, void* context) {
  return Guarded([&] {
    Require(model != nullptr, "there is no model");
    model->opened.EndStream(heard, context);
  });
}

}  // extern "C"
