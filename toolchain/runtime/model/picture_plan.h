// The part of a manifest that says how pictures become the model's input, and outputs objects.
#ifndef MODEL_PICTURE_PLAN_H_
#define MODEL_PICTURE_PLAN_H_

#include <vector>

#include "json.h"
#include "manifest.h"

namespace edge {

// Faults are kExitInput, also where it does not fit the inputs and outputs.
PicturePlan ReadPicturePlan(const JsonNode& node, const std::vector<TensorSpec>& inputs,
                            const std::vector<TensorSpec>& outputs);

}  // namespace edge

#endif  // MODEL_PICTURE_PLAN_H_
