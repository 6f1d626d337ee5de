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
  });
  return 0;
}
