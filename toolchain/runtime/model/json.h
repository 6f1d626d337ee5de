// Typed access to JSON that somebody else wrote, over the parser of tvm_ffi. Faults are kExitInput.
#ifndef MODEL_JSON_H_
#define MODEL_JSON_H_

#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace edge {

namespace json = tvm::ffi::json;

// Parses text in UTF-8 that is nested no deeper than any of our own: the parser itself takes any bytes
// and recurses without a limit.
json::Value ParseJson(std::string_view text, const std::string& file);

// A JSON value together with the words that name its place in messages: file and "inputs[0].shape".
class JsonNode {
 public:
  JsonNode(json::Value value, std::string place, std::string file);

  // Parses text whose outermost value must be an object.
  static JsonNode ParseObject(std::string_view text, const std::string& file);

  bool Has(const std::string& key) const;
  JsonNode Get(const std::string& key) const;
  std::vector<JsonNode> Items() const;
  std::vector<std::string> Keys() const;
  std::string Text() const;
  int64_t Integer() const;
  double Number() const;  // a finite one
  bool Truth() const;

  // Lists of one kind of value; an absent key counts as an empty list.
  std::vector<std::string> TextList(const std::string& key) const;
  std::vector<int64_t> Shape(const std::string& key) const;

  [[noreturn]] void Fail(const std::string& what) const;

 private:
  json::Object Object() const;

  json::Value value_;
  std::string place_;
  std::string file_;
};

}  // namespace edge

#endif  // MODEL_JSON_H_
