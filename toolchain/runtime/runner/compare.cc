// See compare.h.
#include "compare.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "../model/dtype.h"
#include "../model/fault.h"
#include "../model/safetensors.h"
#include "elements.h"
#include "ranked.h"

namespace runner {
namespace {

using edge::Bound;
using edge::Describe;
using edge::DType;
using edge::Fault;
using edge::kExitDifferent;
using edge::kExitInput;
using edge::kExitUsage;
using edge::Manifest;
using edge::SafetensorsFile;

using Real = long double;  // float64 rounds 64-bit integers

// --- outputs whose size depends on the data -------------------------------------------------------

// Those of the first variant: names and bounds are those of all.
const std::vector<edge::TensorSpec>& OutputsOf(const Manifest& manifest) {
  return manifest.variants.front().outputs;
}

std::map<std::string, Bound> BoundsOf(const Manifest& manifest) {
  std::map<std::string, Bound> bounds;
  for (const edge::TensorSpec& spec : OutputsOf(manifest)) {
    if (spec.bound.axis >= 0) bounds[spec.name] = spec.bound;
  }
  return bounds;
}

Elements Cut(const Elements& whole, const std::string& name, int64_t axis, int64_t count) {
  if (axis >= static_cast<int64_t>(whole.shape.size())) {
    throw Fault(kExitDifferent, "output " + name + " has no axis " + std::to_string(axis));
  }
  const int64_t most = whole.shape[axis];
  if (count < 0 || count > most) {
    throw Fault(kExitDifferent, "output " + name + " claims " + std::to_string(count) +
                                    " elements of at most " + std::to_string(most));
  }
  Elements cut{whole.dtype, whole.shape, ""};
  cut.shape[axis] = count;
  size_t inner = whole.dtype->bytes;
  for (size_t i = axis + 1; i < whole.shape.size(); ++i) inner *= whole.shape[i];
  const size_t stride = most * inner;
  for (size_t begin = 0; begin < whole.bytes.size(); begin += stride) {
    cut.bytes.append(whole.bytes, begin, count * inner);
  }
  return cut;
}

std::map<std::string, Elements> CutOutputs(const Manifest& manifest, const NamedTensors& outputs) {
  std::map<std::string, Elements> found;
  for (const auto& [name, tensor] : outputs) found[name] = ElementsOf(tensor);
  const std::map<std::string, Bound> bounds = BoundsOf(manifest);
  std::map<std::string, int64_t> counts;
  for (const auto& [name, bound] : bounds) {
    const auto count = found.find(bound.count);
    if (count == found.end() || count->second.bytes.size() != sizeof(int64_t)) {
      throw Fault(kExitInput, "output " + name + " has no count " + bound.count, manifest.path);
    }
    counts[bound.count] = count->second.At<int64_t>(0);
  }
  for (const auto& [name, bound] : bounds) {
    found[name] = Cut(found[name], name, bound.axis, counts[bound.count]);
  }
  for (const auto& [name, value] : counts) found.erase(name);
  return found;
}

// --- one output -----------------------------------------------------------------------------------

// As long double is no wider than double on some devices, integers are subtracted as such.
template <typename T>
Real Distance(T left, T right) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::fabs(static_cast<Real>(left) - static_cast<Real>(right));
  } else {
    const auto [low, high] = std::minmax(left, right);
    return static_cast<Real>(static_cast<uint64_t>(high) - static_cast<uint64_t>(low));
  }
}

template <typename T>
bool IsFinite(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isfinite(value);
  return true;
}

template <typename T>
bool IsSame(T left, T right) {
  return left == right || (left != left && right != right);  // NaN is like NaN
}

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The largest floats mask as infinity does. As numbers they would be the scale of all differences.
template <typename T>
T MaskAsInfinity(T value, T largest) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::fabs(value) >= largest) return std::copysign(std::numeric_limits<T>::infinity(), value);
  }
  return value;
}

template <typename T>
Difference CompareAs(const Elements& got, const Elements& wanted, double limit,
                     T largest = std::numeric_limits<T>::max()) {
  const size_t size = wanted.bytes.size() / sizeof(T);
  Real distance = 0, scale = 0;
  bool any = size == 0;
  for (size_t i = 0; i < size; ++i) {
    const T left = MaskAsInfinity(got.At<T>(i), largest);
    const T right = MaskAsInfinity(wanted.At<T>(i), largest);
    any = any || IsFinite(wanted.At<T>(i));
    if (!IsFinite(right)) {  // a logarithm of 0, or a mask
      if (!IsSame(left, right)) return {kInfinite, kInfinite, limit, false};
      continue;
    }
    if (!IsFinite(left)) return {kInfinite, kInfinite, limit, false};
    distance = std::max(distance, Distance(left, right));
    scale = std::max(scale, Distance(right, T{0}));
  }
  if (!any) return {kInfinite, kInfinite, limit, false};
  const double relative = static_cast<double>(scale > 0 ? distance / scale : distance);
  return {static_cast<double>(distance), relative, limit, relative <= limit};
}

template <typename To, typename From, typename Convert>
Elements Converted(const Elements& from, Convert convert) {
  Elements to{from.dtype, from.shape, ""};
  for (size_t i = 0; i < from.bytes.size() / sizeof(From); ++i) {
    const To value = convert(from.At<From>(i));
    to.bytes.append(reinterpret_cast<const char*>(&value), sizeof(To));
  }
  return to;
}

constexpr float kLargestHalf = 65504;

Elements WidenedHalf(const Elements& from) { return Converted<float, uint16_t>(from, Widened); }

Elements Truth(const Elements& from) {
  return Converted<uint8_t, uint8_t>(from, [](uint8_t byte) { return uint8_t{byte != 0}; });
}

Difference CompareOne(const Elements& got, const Elements& wanted, double limit) {
  const std::string type = wanted.dtype->name;
  if (type == "float32") return CompareAs<float>(got, wanted, limit);
  if (type == "float64") return CompareAs<double>(got, wanted, limit);
  if (type == "float16") {
    return CompareAs<float>(WidenedHalf(got), WidenedHalf(wanted), limit, kLargestHalf);
  }
  if (type == "int8") return CompareAs<int8_t>(got, wanted, limit);
  if (type == "uint8") return CompareAs<uint8_t>(got, wanted, limit);
  if (type == "int16") return CompareAs<int16_t>(got, wanted, limit);
  if (type == "uint16") return CompareAs<uint16_t>(got, wanted, limit);
  if (type == "int32") return CompareAs<int32_t>(got, wanted, limit);
  if (type == "uint32") return CompareAs<uint32_t>(got, wanted, limit);
  if (type == "int64") return CompareAs<int64_t>(got, wanted, limit);
  if (type == "uint64") return CompareAs<uint64_t>(got, wanted, limit);
  if (type == "bool") return CompareAs<uint8_t>(Truth(got), Truth(wanted), limit);
  throw Fault(kExitInput, "outputs of type " + type + " cannot be compared");
}

// --- all of them ----------------------------------------------------------------------------------

// What counts as the same answer, by type: TOLERANCE in toolchain/tensors.py. Integers are equal.
double UsualTolerance(const DType& dtype) {
  const std::string type = dtype.name;
  if (type == "float16") return 2e-2;
  return type == "float32" || type == "float64" ? 1e-4 : 0.0;
}

double ParseTolerance(const std::string& text) {
  char* end = nullptr;
  const double value = strtod(text.c_str(), &end);
  if (*end != '\0' || !(value >= 0)) {
    throw Fault(kExitUsage, "--tolerance must be a number of at least 0, not \"" + text + "\"");
  }
  return value;
}

// What the outputs are compared with.
struct Expected {
  std::map<std::string, Elements> outputs;
  std::map<std::string, double> limits;  // without one, that of the type
  std::vector<Ranking> rankings;
};

const std::string kOutput = "output.", kLimit = "limit.", kRanking = "ranking.";

bool Begins(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

// Whether the names are those that the host writes for an update: a plain file has the outputs' own.
bool IsFromHost(const Manifest& manifest, const std::map<std::string, Elements>& tensors) {
  std::set<std::string> named, wanted, counts;
  for (const auto& [name, value] : tensors) {
    if (Begins(name, kOutput)) {
      named.insert(name.substr(kOutput.size()));
    } else if (!Begins(name, kLimit) && !Begins(name, kRanking)) {
      return false;
    }
  }
  for (const auto& [name, bound] : BoundsOf(manifest)) counts.insert(bound.count);
  for (const edge::TensorSpec& spec : OutputsOf(manifest)) {
    if (counts.count(spec.name) == 0) wanted.insert(spec.name);
  }
  for (const edge::StatePair& pair : manifest.states) wanted.erase(OutputsOf(manifest)[pair.output].name);
  return named == wanted;
}

double OneNumber(const Elements& tensor, const std::string& name, const std::string& path) {
  const std::vector<double> numbers = Doubles(tensor);
  if (numbers.size() != 1 || !(numbers[0] >= 0)) throw Fault(kExitInput, name + " is not a valid limit", path);
  return numbers[0];
}

Expected LoadExpected(const Manifest& manifest, const std::string& path) {
  const SafetensorsFile file(path);
  std::map<std::string, Elements> tensors;
  for (const auto& [name, entry] : file.entries()) tensors[name] = ElementsOf(file.Load(name));
  if (tensors.empty()) throw Fault(kExitInput, "has no tensors", path);
  if (!IsFromHost(manifest, tensors)) return {tensors, {}, {}};
  Expected expected;
  std::map<std::string, Elements> ranked;
  for (const auto& [name, value] : tensors) {
    if (Begins(name, kOutput)) expected.outputs[name.substr(kOutput.size())] = value;
    if (Begins(name, kRanking)) ranked[name.substr(kRanking.size())] = value;
    if (Begins(name, kLimit)) {
      expected.limits[name.substr(kLimit.size())] = OneNumber(value, name, path);
    }
  }
  expected.rankings = ReadRankings(ranked, expected.outputs, path);
  return expected;
}

const Elements& Alike(const std::map<std::string, Elements>& outputs, const std::string& name,
                      const Elements& wanted) {
  const auto found = outputs.find(name);
  if (found == outputs.end()) throw Fault(kExitDifferent, "there is no output " + name);
  const Elements& got = found->second;
  if (got.dtype != wanted.dtype || got.shape != wanted.shape) {
    throw Fault(kExitDifferent, "output " + name + " is " + Describe(*got.dtype, got.shape) +
                                    " instead of " + Describe(*wanted.dtype, wanted.shape));
  }
  return got;
}

std::string Number(double value, const char* format) {
  char text[40];
  snprintf(text, sizeof text, format, value);
  return text;
}

// Of outputs beyond their limits, the one that is furthest off; otherwise of all.
Difference CompareAll(const std::map<std::string, Elements>& got,
                      const std::map<std::string, Elements>& wanted,
                      const std::map<std::string, double>& limits) {
  Difference worst{0, -1, 0, true};
  for (const auto& [name, elements] : wanted) {
    const Difference one = CompareOne(Alike(got, name, elements), elements, limits.at(name));
    const bool ok = worst.ok && one.ok;
    const double max_abs = std::max(worst.max_abs, one.max_abs);
    const bool is_worse = one.ok == worst.ok ? one.max_rel > worst.max_rel : !one.ok;
    if (is_worse) worst = one;
    worst.ok = ok;
    worst.max_abs = max_abs;
  }
  return worst;
}

}  // namespace

Difference Compare(const Manifest& manifest, const NamedTensors& outputs,
                   const std::string& expected, const std::string& tolerance) {
  const double limit = tolerance.empty() ? -1 : ParseTolerance(tolerance);
  const Expected wanted = LoadExpected(manifest, expected);
  const std::map<std::string, Elements> got = CutOutputs(manifest, outputs);
  if (got.size() != wanted.outputs.size()) {
    throw Fault(kExitDifferent, std::to_string(wanted.outputs.size()) +
                                    " outputs are expected, not " + std::to_string(got.size()));
  }
  std::map<std::string, double> limits;
  for (const auto& [name, elements] : wanted.outputs) {
    const auto own = wanted.limits.find(name);
    limits[name] = limit >= 0                      ? limit
                   : own != wanted.limits.end() ? own->second
                                                : UsualTolerance(*elements.dtype);
  }
  const Difference found = CompareAll(got, wanted.outputs, limits);
  if (found.ok || wanted.rankings.empty()) return found;
  std::map<std::string, Elements> arranged = wanted.outputs;
  for (const Ranking& ranking : wanted.rankings) {
    Arrange(got, ranking, limits, limit >= 0 ? limit : ranking.limit, &arranged);
  }
  return CompareAll(got, arranged, limits);
}

void CheckExpected(const Manifest& manifest, const NamedTensors& outputs,
                   const std::string& expected, const std::string& tolerance) {
  const Difference found = Compare(manifest, outputs, expected, tolerance);
  if (!found.ok) {
    throw Fault(kExitDifferent, "largest relative difference " + Number(found.max_rel, "%.3g") +
                                    ", tolerance " + Number(found.tolerance, "%.3g") +
                                    "; largest absolute difference " +
                                    Number(found.max_abs, "%.3g"));
  }
  printf("{\"max_abs\": %s, \"max_rel\": %s, \"tolerance\": %s}\n",
         Number(found.max_abs, "%.17g").c_str(), Number(found.max_rel, "%.17g").c_str(),
         Number(found.tolerance, "%.17g").c_str());
}

}  // namespace runner
