// The part of a release's manifest.json that is needed to run it.
#ifndef MODEL_MANIFEST_H_
#define MODEL_MANIFEST_H_

#include <dlpack/dlpack.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../pictures/pictures.h"
#include "../sounds/sounds.h"
#include "dtype.h"
#include "files.h"
#include "text_plan.h"

namespace edge {

// How much of an output is the result, where its size depends on the data.
struct Bound {
  int axis = -1;      // -1: all of it
  std::string count;  // the output, of one int64, that says how many of its elements along the axis
};

// Each file of a release that a signer stands for, by name; none where nobody asks.
using Digests = std::map<std::string, FileDigest>;

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  const DType* dtype;
  Bound bound = {};
};

// An output that is an input of the next step, by their numbers.
struct StatePair {
  size_t input;
  size_t output;
  bool in_place = false;  // the output is the input's own memory, in which a step writes what is new
};

// How a release makes its input of a picture, and objects of an output.
struct PicturePlan {
  pictures::Plan plan;
  int64_t output;                   // its number; -1: none is read
  int64_t space;                    // number of the label that stands for a space; -1: none does
  std::vector<std::string> labels;  // of each class; empty: there are none
  int64_t masks;                    // number of the output with their prototypes; -1: there are none
  int64_t boxes;                    // number of the output with the boxes, where another one has their scores; or -1
  std::vector<float> table;         // four numbers of each anchor; empty: there is no table of them
  std::vector<int64_t> levels;      // numbers of the outputs of a grid's levels; empty where they are one output
};

// How a release makes its input of a sound, and classes or labels of an output.
struct SoundPlan {
  sounds::Plan plan;
  int64_t output;                   // its number; -1: none is read
  int64_t space;                    // number of the label that stands for a space; -1: none does
  std::vector<std::string> labels;  // of each class; empty: there are none
  size_t input;                     // number of the one that is not a state
};

// One of the sets of shapes that a release was compiled for. All have inputs and outputs of the same names and types.
struct VariantSpec {
  std::string name;  // empty: it is the only one
  std::string entry;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  std::vector<std::string> params_order;
};

// A dimension that may have any size between two, which are those of the first and of the last variant. All variants are
// one function then. A variant of another size has the name of the dimension, a `-` and the size, as they have.
struct Dynamic {
  std::string dimension;
  int64_t least;
  int64_t greatest;
};

struct Manifest {
  std::string path;
  std::string sha256;  // of the file itself
  std::string name;
  std::string board;
  std::string tvm;  // versions that the library was compiled with
  std::string tvm_ffi;
  std::string library;  // paths, already inside the release's folder
  std::string params;
  std::vector<VariantSpec> variants;  // one at least
  std::optional<Dynamic> dynamic;     // if these are some sizes of a dimension
  std::vector<StatePair> states;      // none where there are several variants, as with pictures
  std::vector<std::string> cpu_features;
  std::optional<PicturePlan> pictures;
  std::optional<SoundPlan> sounds;
  std::optional<TextPlan> texts;
  DLDeviceType device;  // what computes
  Digests digests;

  // The number of a variant; an empty name is that of a single one. A fault of kExitUsage lists them.
  size_t Find(const std::string& variant) const;

  // The variant of a size of the dynamic dimension; none where there is no such size.
  std::optional<VariantSpec> AtSize(int64_t size) const;

  // The size by the name of its variant; -1 for another name.
  int64_t SizeIn(const std::string& variant) const;

  // Of the file at a path; empty where nobody asks. A fault of kExitUntrusted if nobody stands for it.
  FileDigest DigestOf(const std::string& file) const;
};

// Reads DIR/manifest.json; keys it does not know are left alone. With digests, it and what it names
// are held against them when they are read. Faults are kExitInput, and then kExitUntrusted.
Manifest ReadManifest(const std::string& release, const Digests& digests = {});

}  // namespace edge

#endif  // MODEL_MANIFEST_H_
