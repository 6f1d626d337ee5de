// What the steps of pictures and of sounds have in common: reasons, elements of an input, and results of an
// output. Devices and the host compile the same code, so it needs nothing but the C library and templates of
// C++: no exceptions, strings or streams.
#ifndef STEPS_STEPS_H_
#define STEPS_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace steps {

enum Element : int32_t { kFloat32, kFloat16, kUint8, kInt8 };
enum Arithmetic : int32_t { kMultiply, kSubtract, kDivide };

// Why something is refused.
struct Reason {
  char text[192] = "";

  // Returns false, as the functions do that refuse something.
  __attribute__((format(printf, 2, 3))) bool Is(const char* format, ...);
};

// A class, a box in pixels of a picture, or what is heard from `left` to `right`, in seconds.
struct Object {
  int32_t label;
  float score, left, top, right, bottom;
};

size_t SizeOf(int32_t element);

// The bits of an element, in the low ones. Integers are rounded and limited to their range.
uint32_t ElementOf(int32_t element, float value);

// The classes of one row of scores.
struct Ranking {
  int32_t classes;
  int32_t softmax;  // whether scores are the softmax of the row
  int32_t most;
  float score;  // objects have a higher score
};

// Appends the best classes, the best first; of equal scores, the first class comes first.
void RankClasses(const Ranking& ranking, const float* row, std::vector<Object>* objects);

// Rows of scores over time, of which one class says that there is no label.
struct LabelRows {
  int32_t rows;
  int32_t classes;
  int32_t blank;
  double row_s;  // duration of a row, for the times of labels; 0: they have none
};

// Appends the labels that connectionist temporal classification reads, greedily: the best class of each row,
// where repeated ones are one label and blanks separate them. The score is the highest one of its rows.
void ReadLabels(const LabelRows& table, const float* scores, std::vector<Object>* objects);

constexpr int32_t kWidestBeam = 128;
constexpr int64_t kMostBeamRows = 1 << 20;  // rows times beams

// The same labels, of the text that is the most probable one by a search over its beginnings: after each row it keeps so
// many of them as the beam is wide. Of equal ones, those come first that stay as they are, then those of the better
// beginning, then those of the lower label. It allocates nothing after its construction.
class BeamSearch {
 public:
  // A width of 0 needs no memory, and reads nothing. With `softmax`, shares are that of each row.
  BeamSearch(const LabelRows& table, int32_t width, bool softmax);

  // Appends the labels; a score is the label's share in the row where its text was found first, which is its time, too.
  // False with the reason for a row without shares. The objects are as they were then.
  bool Read(const float* scores, std::vector<Object>* objects, Reason* reason);

 private:
  // A text, by that of its other labels; -1 for none. Siblings have the same parent.
  struct Node {
    int32_t parent, label, child, sibling;
    int32_t row;   // where it was found first
    int32_t beam;  // its number; -1: it is not kept
    float score;
  };

  // A node, or with a label that one's continuation, and how probable it is to end in a blank, and in its label.
  struct Beam {
    int32_t node, label;
    double blank, other;
  };

  bool Weigh(int32_t number, const float* row, Reason* reason);
  int32_t Child(int32_t node, int32_t label) const;
  void Offer(const Beam& text);
  void Stay();
  void Extend();
  void Step(int32_t row);

  const LabelRows table_;
  const size_t width_;
  const bool softmax_;
  std::vector<double> shares_;
  std::vector<Node> nodes_;
  std::vector<Beam> beams_, best_;
};

}  // namespace steps

#endif  // STEPS_STEPS_H_
