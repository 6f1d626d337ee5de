// See text_plan.h. The words are those of toolchain/texts.py.
#include "text_plan.h"

#include <array>

#include "plan_numbers.h"

namespace edge {
namespace {

constexpr const char* kTextKinds[] = {"bpe", "wordpiece", "sentencepiece"};
constexpr char kReplacement[] = "\xEF\xBF\xBD";
constexpr char kPieceMark[] = "\xE2\x96\x81";  // SentencePiece's, of a space
constexpr uint32_t kLetters = 324;             // of GPT-2's alphabet, by their code points

// The byte that a letter of GPT-2's alphabet stands for; -1: it is none of them.
std::array<int16_t, kLetters> MakeAlphabet() {
  std::array<int16_t, kLetters> bytes;
  bytes.fill(-1);
  uint32_t next = 256;
  for (int16_t byte = 0; byte < 256; ++byte) {
    const bool is_printed = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    bytes[is_printed ? static_cast<uint32_t>(byte) : next++] = byte;
  }
  return bytes;
}

// How many bytes from here on are one code point of UTF-8, which is given, too; or with `valid` false, how many belong to
// what could have become one.
size_t Decode(std::string_view text, uint32_t* point, bool* valid) {
  const auto at = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = at(0);
  *valid = lead < 0x80;
  *point = lead;
  if (lead < 0xC2 || lead > 0xF4) return 1;
  const size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  *point = lead & (0xFFu >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if (i >= text.size() || at(i) < low || at(i) > high) return i;
    *point = *point << 6 | (at(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  *valid = true;
  return size;
}

void Repair(std::string* text) {
  std::string whole;
  for (std::string_view left = *text; !left.empty();) {
    uint32_t point;
    bool valid;
    const size_t size = Decode(left, &point, &valid);
    whole += valid ? left.substr(0, size) : std::string_view(kReplacement);
    left.remove_prefix(size);
  }
  text->swap(whole);
}

void AddLetters(std::string_view token, std::string* text) {
  static const std::array<int16_t, kLetters> alphabet = MakeAlphabet();
  while (!token.empty()) {
    uint32_t point;
    bool valid;
    const size_t size = Decode(token, &point, &valid);
    if (valid && point < kLetters && alphabet[point] >= 0) {
      text->push_back(static_cast<char>(alphabet[point]));
    } else {
      text->append(token.substr(0, size));
    }
    token.remove_prefix(size);
  }
}

int HexOf(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

void AddPiece(std::string_view token, std::string* text) {
  const bool is_byte = token.size() == 6 && token.substr(0, 3) == "<0x" && token[5] == '>' && HexOf(token[3]) >= 0 &&
                       HexOf(token[4]) >= 0;
  if (is_byte) {
    text->push_back(static_cast<char>(HexOf(token[3]) * 16 + HexOf(token[4])));
    return;
  }
  for (size_t mark; (mark = token.find(kPieceMark)) != std::string_view::npos;) {
    text->append(token.substr(0, mark)).append(" ");
    token.remove_prefix(mark + sizeof kPieceMark - 1);
  }
  text->append(token);
}

}  // namespace

TextPlan ReadTextPlan(const JsonNode& node) {
  const JsonNode table = node.Get("plan");
  TextPlan plan{node.TextList("labels"), Choice(table.Get("kind"), kTextKinds), table.Get("end").Integer(), {}};
  const int64_t count = static_cast<int64_t>(plan.tokens.size());
  if (count == 0) node.Get("labels").Fail("is empty");
  if (plan.end < -1 || plan.end >= count) table.Get("end").Fail("is not a token");
  plan.skips.resize(plan.tokens.size());
  for (const JsonNode& item : table.Get("skip").Items()) {
    const int64_t number = item.Integer();
    if (number < 0 || number >= count) item.Fail("is not a token");
    plan.skips[static_cast<size_t>(number)] = true;
  }
  return plan;
}

bool WriteTokens(const TextPlan& plan, const int64_t* numbers, size_t count, std::string* text) {
  text->clear();
  bool is_first = true;
  for (size_t i = 0; i < count; ++i) {
    const int64_t number = numbers[i];
    if (number < 0 || number >= static_cast<int64_t>(plan.tokens.size())) return false;
    if (number == plan.end) break;
    if (plan.skips[static_cast<size_t>(number)]) continue;
    const std::string_view token = plan.tokens[static_cast<size_t>(number)];
    if (plan.kind == kBpe) {
      AddLetters(token, text);
    } else if (plan.kind == kSentencepiece) {
      AddPiece(token, text);
    } else if (!is_first && token.substr(0, 2) == "##") {
      text->append(token.substr(2));
    } else {
      if (!is_first) text->push_back(' ');
      text->append(token);
    }
    is_first = false;
  }
  Repair(text);
  if (plan.kind == kSentencepiece && !text->empty() && text->front() == ' ') text->erase(0, 1);
  return true;
}

}  // namespace edge
