// Runs a model on raw pictures or sounds, one after the other, by the steps of its release.
#ifndef RUNNER_RAW_SAMPLES_H_
#define RUNNER_RAW_SAMPLES_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "../library/edge_model.h"
#include "../model/safetensors.h"
#include "samples.h"

namespace runner {

// A file of RGB pictures, uint8 of height x width x 3, or of files, uint8 of their bytes: JPEG, PNG or WAV, by how they
// begin. Their names are 0, 1, and so on. Faults are kExitInput.
class RawSamples {
 public:
  // `count` samples; 0: one. `second` may be null, or runs on each box of a picture.
  RawSamples(edge_model* model, edge_model* second, const std::string& path, int64_t count);

  int64_t count() const { return static_cast<int64_t>(samples_.size()); }

  // Runs one, and keeps its objects.
  void Run(int64_t sample);

  // Writes `objects`, float32 of total x 6 (class, score, left, top, right, bottom), and `counts`, the objects
  // of each sample; where they have key points, also `points` of each object, float32 of N x 3 (x, y, score). With a
  // second model, `crops`, `crop_counts` and `crop_points` are its objects for each of these, in the same form. With
  // `keep_input` also the `input` that was made of the last one, and the `masks` of its first objects, if it has any.
  void Write(const std::string& path, bool keep_input) const;

 private:
  void RunCrops(const edge_image* image);
  std::vector<uint8_t> Masks() const;

  edge_model* model_;
  edge_model* second_;
  edge::SafetensorsFile file_;
  std::vector<std::variant<edge_image, edge_audio>> samples_;
  std::vector<float> objects_, points_, crops_, crop_points_;
  int32_t last_count_ = 0;  // objects of the last sample
  std::vector<int64_t> counts_, crop_counts_;
};

}  // namespace runner

#endif  // RUNNER_RAW_SAMPLES_H_
