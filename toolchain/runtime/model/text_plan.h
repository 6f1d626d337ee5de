// The part of a manifest that says how the numbers of tokens become a text, and that text.
#ifndef MODEL_TEXT_PLAN_H_
#define MODEL_TEXT_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "json.h"

namespace edge {

// Bytes of GPT-2's letters; pieces of words; or SentencePiece's pieces, with bytes as <0x0A>.
enum TextKind : int32_t { kBpe, kWordpiece, kSentencepiece };

struct TextPlan {
  std::vector<std::string> tokens;
  int32_t kind;             // TextKind
  int64_t end;              // the token that ends a text; -1: none does
  std::vector<bool> skips;  // of each token, whether it is not written
};

// Faults are kExitInput.
TextPlan ReadTextPlan(const JsonNode& node);

// Writes the text of tokens, in UTF-8: bytes that are none become U+FFFD. False for a number that is no token's.
bool WriteTokens(const TextPlan& plan, const int64_t* numbers, size_t count, std::string* text);

}  // namespace edge

#endif  // MODEL_TEXT_PLAN_H_
