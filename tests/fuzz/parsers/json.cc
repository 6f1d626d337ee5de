// Typed access to JSON, on everything that a document holds.
#include "model/json.h"

#include "fuzz.h"
#include "model/fault.h"

namespace {

using edge::Fault;
using edge::JsonNode;

void Walk(const JsonNode& node) {
  fuzz::Accepts<Fault>([&] { node.Text(); });
  fuzz::Accepts<Fault>([&] { node.Integer(); });
  fuzz::Accepts<Fault>([&] {
    for (const JsonNode& item : node.Items()) Walk(item);
  });
  fuzz::Accepts<Fault>([&] {
    for (const std::string& key : node.Keys()) {
      Walk(node.Get(key));
      fuzz::Accepts<Fault>([&] { node.TextList(key); });
      fuzz::Accepts<Fault>([&] { node.Shape(key); });
    }
  });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Accepts<Fault>([&] { Walk(JsonNode::ParseObject(fuzz::Text(data, size), "input.json")); });
  return 0;
}
