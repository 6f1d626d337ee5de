// A plan and a sound as an application gives them: a WAV file or samples, in memory of exactly its bytes; then an
// output of the model.
#include "sounds/sounds.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz.h"

namespace {

constexpr int32_t kSize = 64;  // of frames, windows and outputs, so that one input takes no time
constexpr int32_t kMostStreamed = 1000;

sounds::Plan PlanFrom(fuzz::Bytes* bytes) {
  if (bytes->Take<uint8_t>() % 2 == 0) {  // the samples as they are, so that any input reaches the reader of files
    sounds::Plan plan = {};
    plan.rate = 16000;
    plan.resample = 1;
    plan.samples = plan.frames = kSize;
    plan.hop = kSize / 2;
    plan.context = kSize / 8;
    plan.mels = 1;
    return plan;
  }
  auto plan = bytes->Take<sounds::Plan>();
  plan.samples %= 16 * kSize;
  plan.fft %= 2 * kSize + 1;
  plan.mels %= kSize;
  plan.frames %= 16 * kSize;
  plan.classes %= kSize;
  plan.candidates %= kSize;
  plan.most %= kSize;
  return plan;
}

void Prepare(sounds::Pipeline* pipeline, const sounds::Sound& sound, int32_t window) {
  sounds::Reason reason;
  const size_t size = pipeline->input_bytes();
  std::vector<uint8_t> first(size, 1), second(size, 2);
  const bool made = pipeline->Prepare(window, first.data(), size, &reason);
  fuzz::Must(made == (reason.text[0] == '\0'));
  if (!made) return;
  // Every byte is written, and again the same.
  int32_t windows = 0;
  fuzz::Must(pipeline->Open(sound, &windows, &reason) && window < windows);
  fuzz::Must(pipeline->Prepare(window, second.data(), size, &reason) && first == second);
}

// The same sound as a stream, in parts of any size: its windows are those of the whole.
void Stream(const sounds::Plan& plan, sounds::Pipeline* whole, const sounds::Sound& sound, int32_t windows) {
  sounds::Pipeline pipeline(plan);
  sounds::Reason reason;
  const size_t size = whole->input_bytes();
  std::vector<uint8_t> expected(size), made(size);
  int64_t window = 0, next = 0;
  const auto check = [&] {
    const bool fits = whole->Prepare(window, expected.data(), size, &reason);
    fuzz::Must(window == next++ && pipeline.Prepare(window, made.data(), size, &reason) == fits);
    fuzz::Must(!fits || made == expected);
  };
  const size_t block = static_cast<size_t>(sound.channels) * (sound.format == sounds::kPcm16 ? 2 : 4);
  const size_t step = block * (1 + sound.bytes % 97);
  for (size_t at = 0; at < sound.bytes; at += step) {
    sounds::Sound part = sound;
    part.bytes = std::min(step, sound.bytes - at);
    std::vector<uint8_t> copy(sound.data + at, sound.data + at + part.bytes);  // gone when the next part comes
    part.data = copy.data();
    if (!pipeline.Continue(part, &reason)) return;
    while (pipeline.NextWindow(&window)) check();
  }
  while (pipeline.LastWindow(&window)) check();
  fuzz::Must(next == windows);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes bytes(data, size);
  const sounds::Plan plan = PlanFrom(&bytes);
  sounds::Reason reason;
  if (!CheckPlan(plan, &reason)) return 0;
  sounds::Pipeline pipeline(plan);
  sounds::Sound sound = {};
  sound.format = bytes.Take<uint8_t>() % 5;
  const bool is_file = sound.format == sounds::kWav;
  const uint8_t kind = is_file ? 0 : bytes.Take<uint8_t>();
  if (!is_file) {
    sound.rate = kind % 2 == 0 ? bytes.Take<int32_t>() : plan.rate;
    sound.channels = kind % 4 == 0 ? bytes.Take<int8_t>() : 1 + kind % 3;
  }
  const size_t values = bytes.Take<uint16_t>() % (bytes.size() / sizeof(float) + 1);
  std::vector<float> output(values);
  const auto numbers = bytes.Copy(values * sizeof(float));
  if (values > 0) memcpy(output.data(), numbers.get(), values * sizeof(float));
  sound.bytes = bytes.size();
  const auto contents = bytes.Copy(sound.bytes);
  sound.data = contents.get();
  int32_t windows = 0;
  const bool opened = pipeline.Open(sound, &windows, &reason);
  fuzz::Must(opened == (reason.text[0] == '\0') && (!opened || (windows > 0 && windows <= sounds::kMostWindows)));
  if (!opened) return 0;
  for (const int32_t window : {0, windows / 2, windows - 1}) Prepare(&pipeline, sound, window);
  if (!is_file && plan.hop > 0 && windows < kMostStreamed) {
    Stream(plan, &pipeline, sound, windows);
  }
  if (pipeline.Find(0, output.data(), values, &reason)) {
    fuzz::Must(pipeline.objects().size() <= static_cast<size_t>(plan.most));
    for (const sounds::Object& object : pipeline.objects()) {
      fuzz::Must(object.label >= 0 && object.label < plan.classes);
    }
  }
  return 0;
}
