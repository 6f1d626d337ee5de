// The command lines of both programs: words with a zero after each.
#include "runner/options.h"

#include <vector>

#include "fuzz.h"
#include "model/fault.h"
#include "server/options.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(fuzz::Text(data, size));
  std::vector<char*> words;
  text.push_back('\0');
  for (size_t at = 0; at < text.size(); at = text.find('\0', at) + 1) words.push_back(&text[at]);
  const int count = static_cast<int>(words.size());
  words.push_back(nullptr);
  fuzz::Accepts<edge::Fault>([&] { runner::ParseOptions(count, words.data()); });
  fuzz::Accepts<edge::Fault>([&] {
    const board_server::Options options = board_server::ParseOptions(count, words.data());
    fuzz::Must(options.port >= 0 && options.port <= 65535);
  });
  return 0;
}
