// Turns raw sounds into a model's input, and its outputs into classes or labels, as the model was trained. What
// pictures/pictures.h says about its code holds here, too. It computes in doubles: the results of two processors
// differ in the last bits of a float, because their mathematical functions do.
#ifndef SOUNDS_SOUNDS_H_
#define SOUNDS_SOUNDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../steps/steps.h"

namespace sounds {

using steps::Object;
using steps::Reason;

enum Format : int32_t { kWav = 1, kPcm16, kFloat };
enum Convention : int32_t { kSamples, kLibrosa, kTorchaudio, kKaldi };
enum Padding : int32_t { kZeros, kReflect, kNoPadding };
enum Logarithm : int32_t { kNoLog, kNatural, kDecimal, kDecibel };
// After those of steps::Arithmetic: to a mean of 0 and a variance of 1, of all values or of each band.
enum Normalization : int32_t { kOfAll = 3, kOfBands };
enum Head : int32_t { kNoHead, kClasses, kLabels };

constexpr double kPi = 3.14159265358979323846;
constexpr int32_t kMostOperations = 4;
constexpr int32_t kHighestRate = 768000;
constexpr int32_t kMostChannels = 64;
constexpr int32_t kLargestWindow = 1 << 22;  // samples of a model's input
constexpr int32_t kLargestFft = 1 << 14;
constexpr int32_t kLargestFactor = 7;    // of its size
constexpr int32_t kMostBands = 1024;
constexpr int32_t kMostFrames = 1 << 16;
constexpr int32_t kMostWindows = 1 << 20;  // of a sound, and their objects altogether; a stream has no limit
constexpr int32_t kMostObjects = 100;    // of a window
constexpr int32_t kMostRows = 1 << 16;   // of an output with labels
constexpr int32_t kMostScores = 1 << 24;  // of an output

struct Operation {
  int32_t kind;  // steps::Arithmetic or Normalization
  float value;
};

// All numbers of a pipeline. Its layout is also written in toolchain/native/sounds.py.
struct Plan {
  double low, high;  // frequencies of the bands, in Hz
  double floor;      // least value whose logarithm is taken
  double offset;     // added before the logarithm
  double top;        // decibels that a value may lie below the highest of its window; 0: any
  int32_t rate;      // samples of a second
  int32_t resample;  // whether sounds of another rate are resampled, as torchaudio does it, or refused
  int32_t samples;   // of a window, of which the model's input is made
  int32_t hop;       // samples from a window to the next one; 0: a longer sound is refused
  int32_t context;   // samples of a window that lie before its own time; zeros before the first one
  int32_t convention;  // Convention; kSamples: the input has the samples themselves
  int32_t fft, win, step;  // sizes of the transform and of its window, and samples from a frame to the next one
  int32_t mels;          // bands of the spectrogram
  int32_t coefficients;  // of its cosine transform (MFCC); 0: the spectrogram itself
  int32_t frames;        // of the model's input; the samples, without features
  int32_t padding;       // Padding
  int32_t power;         // 1: magnitudes, 2: their squares
  int32_t logarithm;     // Logarithm
  int32_t bands_first;   // whether the frames of a band follow each other, or the bands of a frame
  int32_t element;       // steps::Element
  int32_t operations;    // number of them; they are applied in order
  Operation operation[kMostOperations];
  int32_t head;        // Head
  int32_t softmax;     // whether scores are the softmax of the output
  int32_t most;        // objects of a window
  int32_t classes;     // of the output
  int32_t candidates;  // its rows
  int32_t blank;       // kLabels: class without a label
  int32_t beam;        // kLabels: width of the search; 0: the best label of each row
};

// Memory of the caller.
struct Sound {
  int32_t format;          // Format
  int32_t rate, channels;  // of samples that are no WAV file, whose channels alternate
  const uint8_t* data;
  size_t bytes;
};

enum Encoding : int32_t { kUnsigned8, kSigned16, kSigned24, kSigned32, kFloat32Bits, kFloat64Bits };

// Samples in memory: little-endian, with alternating channels.
struct Samples {
  int32_t encoding;  // Encoding
  int32_t rate, channels;
  const uint8_t* data;
  int64_t count;  // of each channel
  int64_t start;  // number of the first one: those of a stream before it are gone
};

// Checks a sound, and returns where its samples are; or else gives the reason.
bool Open(const Sound& sound, Samples* samples, Reason* reason);

bool IsFinite(const Samples& samples);

// Decodes some samples to a mean over all channels, from -1 to 1; zeros before the first and after the last one.
// False if one is not a finite number.
bool Decode(const Samples& samples, int64_t first, int64_t count, double* to);

bool CheckPlan(const Plan& plan, Reason* reason);

// Frames of a window.
int64_t CountFrames(const Plan& plan);

// Resamples with a window of sinc, with the numbers that torchaudio.functional.resample has by default.
class Resampler {
 public:
  // Not again for the same rates.
  bool Prepare(int32_t from, int32_t to, int32_t samples, Reason* reason);
  int64_t Count(int64_t samples) const { return (samples * new_ + old_ - 1) / old_; }  // of the result
  // The first sample that a sample of the result is made of, and the one after the last.
  int64_t Begin(int64_t index) const { return index / new_ * old_ + first_[static_cast<size_t>(index % new_)]; }
  int64_t End(int64_t index) const { return Begin(index) + taps_; }
  size_t most() const { return source_.size(); }  // samples that a window is made of
  // Computes some samples of the result; false as of Decode.
  bool Run(const Samples& samples, int64_t first, int64_t count, double* to);

 private:
  int32_t from_ = 0, to_ = 0;
  int64_t old_ = 1, new_ = 1, taps_ = 0;
  std::vector<int64_t> first_;  // for each phase, its first sample before the phase's own
  std::vector<double> weights_;  // `taps_` for each phase
  std::vector<double> source_;
};

struct Complex {
  double re, im;
};

// The discrete Fourier transform of real numbers, for sizes with small factors.
class Fft {
 public:
  explicit Fft(int32_t size);
  // Replaces `size` numbers by the power, or the magnitude, of the first half and one.
  void Run(int32_t power, double* values);

 private:
  void Transform(const double* from, int32_t stride, int32_t size, size_t factor, Complex* to);

  int32_t size_;
  std::vector<int32_t> factors_;
  std::vector<Complex> twiddles_, result_;
};

// The spectrogram of a window, in bands or as cepstral coefficients.
class Features {
 public:
  explicit Features(const Plan& plan);
  // Fills `frames` x `bands` values.
  void Run(const double* window, double* values);

 private:
  void MakeWindow();
  void MakeBands();
  void MakeCosines();
  void Cut(const double* window, int64_t frame);
  void Compress(double* values) const;

  const Plan plan_;
  Fft fft_;
  std::vector<double> window_, frame_, cosines_, row_;
  std::vector<int32_t> first_;   // of each band, its first bin
  std::vector<size_t> offsets_;  // where its weights begin; one more at the end
  std::vector<double> weights_;
};

// Not for use by two threads at the same time. After the first sound, another one of the same rate allocates
// nothing.
class Pipeline {
 public:
  // The plan was checked.
  explicit Pipeline(const Plan& plan);

  // How many windows a sound has; false with the reason if it is refused. The sound stays open, and a stream ends.
  bool Open(const Sound& sound, int32_t* windows, Reason* reason);

  // Fills the model's input with a window of the open sound, or of the stream.
  bool Prepare(int64_t window, void* input, size_t bytes, Reason* reason);

  // Adds the objects of an output for that window of a sound; the first one's replace those of the last sound.
  bool Find(int64_t window, const float* output, size_t count, Reason* reason);

  // The next samples of a stream, in memory of the caller until NextWindow is false. What is refused leaves the stream
  // as it was.
  bool Continue(const Sound& sound, Reason* reason);

  // The number of the stream's next window, if its samples are there: Prepare fills the input with it. False: all samples
  // are taken in.
  bool NextWindow(int64_t* window);

  // The same at the end of a stream: zeros follow its samples. False: none is left, and another stream may begin.
  bool LastWindow(int64_t* window);

  void EndStream();

  // As Find for a window of the stream, but the objects are those of this window alone.
  bool FindNext(int64_t window, const float* output, size_t count, Reason* reason);

  const std::vector<Object>& objects() const { return objects_; }
  size_t input_bytes() const;

 private:
  bool Admit(const Samples& samples, Reason* reason);
  int64_t FirstOf(int64_t window) const { return window * plan_.hop - plan_.context; }
  int64_t CountWindows(int64_t total) const;
  int64_t SourceBegin(int64_t window) const;
  int64_t SourceEnd(int64_t window) const;
  void Take(int64_t begin, int64_t end);
  bool Fill(int64_t window);
  steps::LabelRows Table() const;
  bool Append(int64_t window, const float* output, size_t count, Reason* reason);
  void Compute();
  void Normalize(bool each_band, double* values) const;

  const Plan plan_;
  int32_t bands_;
  bool is_resampled_ = false;
  int64_t total_ = 0;  // samples of the open sound, at the plan's rate
  Samples samples_ = {};
  Resampler resampler_;
  Features features_;
  steps::BeamSearch search_;
  std::vector<double> window_, values_;
  std::vector<Object> objects_;
  // Of a stream: its rate and channels, the part that is not taken in yet, the mean of the channels of the samples that
  // its next windows need, and how many samples came and windows went before.
  Samples arrived_ = {};
  std::vector<double> recent_;
  int64_t recent_start_ = 0, recent_count_ = 0, next_window_ = 0;
};

}  // namespace sounds

#endif  // SOUNDS_SOUNDS_H_
