// See json.h.
#include "json.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fault.h"

namespace edge {
namespace {

constexpr int kMaxDepth = 32;

// How many bytes follow the first one of a UTF-8 character, and the range of the second; -1 for no
// first byte.
struct Utf8Rule {
  int following;
  unsigned char low;
  unsigned char high;
};

Utf8Rule RuleFor(unsigned char first) {
  if (first < 0x80) return {0, 0x80, 0xBF};
  if (first < 0xC2 || first > 0xF4) return {-1, 0, 0};
  if (first < 0xE0) return {1, 0x80, 0xBF};
  // The narrower ranges leave out overlong forms, surrogates and what is above U+10FFFF.
  if (first == 0xE0) return {2, 0xA0, 0xBF};
  if (first == 0xED) return {2, 0x80, 0x9F};
  if (first < 0xF0) return {2, 0x80, 0xBF};
  if (first == 0xF0) return {3, 0x90, 0xBF};
  return {3, 0x80, static_cast<unsigned char>(first == 0xF4 ? 0x8F : 0xBF)};
}

// The parser of tvm_ffi lets any byte through; names would then spoil messages and output files.
bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const Utf8Rule rule = RuleFor(static_cast<unsigned char>(text[i]));
    if (rule.following < 0 || static_cast<size_t>(rule.following) >= text.size() - i) return false;
    for (int k = 1; k <= rule.following; ++k) {
      const unsigned char c = static_cast<unsigned char>(text[++i]);
      if (k == 1 ? (c < rule.low || c > rule.high) : (c & 0xC0) != 0x80) return false;
    }
  }
  return true;
}

// The parser of tvm_ffi recurses without a limit: a file of brackets would overflow the stack.
bool NestsTooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace

json::Value ParseJson(std::string_view text, const std::string& file) {
  if (!IsUtf8(text)) throw Fault(kExitInput, "invalid JSON: not UTF-8", file);
  if (NestsTooDeep(text)) throw Fault(kExitInput, "invalid JSON: nested too deep", file);
  tvm::ffi::String message;
  json::Value value = json::Parse(tvm::ffi::String(text.data(), text.size()), &message);
  if (message.size() != 0) {
    throw Fault(kExitInput, "invalid JSON: " + std::string(message), file);
  }
  return value;
}

JsonNode::JsonNode(json::Value value, std::string place, std::string file)
    : value_(std::move(value)), place_(std::move(place)), file_(std::move(file)) {}

JsonNode JsonNode::ParseObject(std::string_view text, const std::string& file) {
  JsonNode node(ParseJson(text, file), "the JSON document", file);
  node.Object();
  return node;
}

void JsonNode::Fail(const std::string& what) const {
  throw Fault(kExitInput, place_ + " " + what, file_);
}

json::Object JsonNode::Object() const {
  auto object = value_.as<json::Object>();
  if (!object) Fail("must be an object");
  return *object;
}

bool JsonNode::Has(const std::string& key) const {
  return Object().count(tvm::ffi::String(key)) != 0;
}

JsonNode JsonNode::Get(const std::string& key) const {
  if (!Has(key)) Fail("has no key \"" + key + "\"");
  return JsonNode(Object().at(tvm::ffi::String(key)), "\"" + key + "\" in " + place_, file_);
}

std::vector<JsonNode> JsonNode::Items() const {
  auto array = value_.as<json::Array>();
  if (!array) Fail("must be a list");
  std::vector<JsonNode> items;
  items.reserve(array->size());
  for (const json::Value& item : *array) {
    items.emplace_back(item, "entry " + std::to_string(items.size()) + " of " + place_, file_);
  }
  return items;
}

std::vector<std::string> JsonNode::Keys() const {
  std::vector<std::string> keys;
  for (const auto& pair : Object()) {
    keys.push_back(pair.first.cast<tvm::ffi::String>());
  }
  return keys;
}

std::string JsonNode::Text() const {
  auto text = value_.as<tvm::ffi::String>();
  if (!text) Fail("must be a string");
  return std::string(*text);
}

int64_t JsonNode::Integer() const {
  auto number = value_.as<int64_t>();
  if (!number) Fail("must be an integer");
  return *number;
}

double JsonNode::Number() const {
  if (auto whole = value_.as<int64_t>()) return static_cast<double>(*whole);
  auto number = value_.as<double>();
  if (!number || !std::isfinite(*number)) Fail("must be a number");
  return *number;
}

bool JsonNode::Truth() const {
  auto truth = value_.as<bool>();
  if (!truth) Fail("must be true or false");
  return *truth;
}

std::vector<std::string> JsonNode::TextList(const std::string& key) const {
  std::vector<std::string> list;
  if (!Has(key)) return list;
  for (const JsonNode& item : Get(key).Items()) list.push_back(item.Text());
  return list;
}

std::vector<int64_t> JsonNode::Shape(const std::string& key) const {
  std::vector<int64_t> shape;
  for (const JsonNode& item : Get(key).Items()) {
    shape.push_back(item.Integer());
    if (shape.back() < 0) item.Fail("must not be negative");
  }
  return shape;
}

}  // namespace edge
