// A release's manifest.json.
#include "model/manifest.h"

#include "fuzz.h"
#include "model/fault.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string release = fuzz::Folder();
  fuzz::Write(release + "/manifest.json", data, size);
  fuzz::Accepts<edge::Fault>([&] {
    const edge::Manifest manifest = edge::ReadManifest(release);
    const auto inside = [](const std::string& path) {
      return path.rfind(release + "/", 0) == 0 && (path + "/").find("/../") == std::string::npos;
    };
    fuzz::Must(inside(manifest.library) && inside(manifest.params));
    if (manifest.dynamic) {
      const int64_t middle = (manifest.dynamic->least + manifest.dynamic->greatest) / 2;
      const auto variant = manifest.AtSize(middle);
      if (variant) fuzz::Must(manifest.SizeIn(variant->name) == middle);
    }
    if (!manifest.texts) return;
    std::string text;
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < manifest.texts->tokens.size(); ++i) numbers.push_back(static_cast<int64_t>(i));
    fuzz::Must(edge::WriteTokens(*manifest.texts, numbers.data(), numbers.size(), &text));
    numbers.push_back(static_cast<int64_t>(numbers.size()));
    fuzz::Must(manifest.texts->end >= 0 || !edge::WriteTokens(*manifest.texts, numbers.data(), numbers.size(), &text));
  });
  return 0;
}
