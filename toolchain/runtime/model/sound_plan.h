// The part of a manifest that says how sounds become the model's input, and outputs classes or labels.
#ifndef MODEL_SOUND_PLAN_H_
#define MODEL_SOUND_PLAN_H_

#include <vector>

#include "json.h"
#include "manifest.h"

namespace edge {

// Faults are kExitInput, also where it does not fit the inputs and outputs.
SoundPlan ReadSoundPlan(const JsonNode& node, const std::vector<TensorSpec>& inputs,
                        const std::vector<TensorSpec>& outputs, const std::vector<StatePair>& states);

}  // namespace edge

#endif  // MODEL_SOUND_PLAN_H_
