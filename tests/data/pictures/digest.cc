// Prints a digest of what 300 drawn pipelines make of drawn pictures and outputs: the same on every processor.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "pictures/pictures.h"

namespace {

class Stream {
 public:
  uint32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  int32_t Below(uint32_t end) { return static_cast<int32_t>(Next() % end); }
  float Share() { return static_cast<float>(Next() % 1000) / 997; }

 private:
  uint64_t state_ = 1;
};

uint64_t Add(uint64_t digest, const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < size; ++i) digest = (digest ^ bytes[i]) * 1099511628211u;
  return digest;
}

pictures::Plan DrawPlan(Stream* stream) {
  pictures::Plan plan = {};
  plan.width = 1 + stream->Below(40);
  plan.height = 1 + stream->Below(40);
  plan.order = stream->Below(3);
  plan.kernel = 1 + stream->Below(4);
  plan.fit = stream->Below(2);
  plan.pad = stream->Below(256);
  plan.channels_first = stream->Below(2);
  plan.element = stream->Below(4);
  plan.operations = pictures::kMostOperations;
  for (int32_t i = 0; i < plan.operations; ++i) {
    plan.operation[i].kind = i;
    for (float& value : plan.operation[i].values) value = 0.003f + stream->Share();
  }
  plan.head = 1 + stream->Below(3);
  plan.softmax = stream->Below(2);
  plan.most = 20;
  plan.classes = 3;
  plan.candidates = plan.head == pictures::kClasses ? 1 : 50;
  plan.nms = 0.4f;
  plan.score = 0.1f;
  return plan;
}

std::vector<uint8_t> DrawPicture(Stream* stream, pictures::Picture* picture) {
  picture->format = 1 + stream->Below(6);
  picture->width = 1 + stream->Below(60);
  picture->height = 1 + stream->Below(60);
  const size_t width = static_cast<size_t>(picture->width), height = static_cast<size_t>(picture->height);
  const size_t pairs = (width + 1) / 2, channels[] = {0, 3, 3, 4, 1};
  size_t bytes = 0;
  if (picture->format == pictures::kNv12) {
    bytes = width * height + pairs * 2 * ((height + 1) / 2);
  } else if (picture->format == pictures::kYuyv) {
    bytes = pairs * 4 * height;
  } else {
    bytes = width * height * channels[picture->format];
  }
  std::vector<uint8_t> data(bytes);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(stream->Next());
  picture->data = data.data();
  picture->bytes = bytes;
  return data;
}

}  // namespace

int main() {
  Stream stream;
  uint64_t digest = 14695981039346656037u;
  pictures::Reason reason;
  for (int round = 0; round < 300; ++round) {
    const pictures::Plan plan = DrawPlan(&stream);
    pictures::Picture picture = {};
    const std::vector<uint8_t> data = DrawPicture(&stream, &picture);
    const size_t rows[] = {0, 0, 5, 4};
    std::vector<float> output((static_cast<size_t>(plan.classes) + rows[plan.head]) *
                              static_cast<size_t>(plan.candidates));
    for (float& value : output) value = static_cast<float>(stream.Below(4096)) / 512;
    bool ok = CheckPlan(plan, &reason);
    pictures::Pipeline pipeline(plan);
    std::vector<uint8_t> input(pipeline.input_bytes());
    ok = ok && pipeline.Prepare(picture, input.data(), input.size(), &reason) &&
         pipeline.Find(picture.width, picture.height, {output.data(), output.size(), nullptr, 0}, &reason);
    if (!ok) {
      puts(reason.text);
      return 1;
    }
    digest = Add(digest, input.data(), input.size());
    const auto& objects = pipeline.objects();
    digest = Add(digest, objects.data(), objects.size() * sizeof(pictures::Object));
  }
  printf("%016llx\n", static_cast<unsigned long long>(digest));
  return 0;
}
