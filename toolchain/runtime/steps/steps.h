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

}  // namespace steps

#endif  // STEPS_STEPS_H_
