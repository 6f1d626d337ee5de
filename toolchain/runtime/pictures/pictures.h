// Turns raw pictures into a model's input, and its outputs into classes or boxes, as the model was
// trained. Devices and the host compile the same code, so it needs nothing but the C library and templates
// of C++: no exceptions, strings or streams.
#ifndef PICTURES_PICTURES_H_
#define PICTURES_PICTURES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../steps/steps.h"

namespace pictures {

using steps::Object;
using steps::Reason;

enum Format : int32_t { kRgb = 1, kBgr, kRgba, kGray, kNv12, kYuyv, kJpeg, kPng };  // the last two: see decoder.h
enum Order : int32_t { kAsRgb, kAsBgr, kAsGray };
enum Kernel : int32_t { kNone, kNearest, kPillow, kOpenCv, kTorch };
enum Fit : int32_t { kStretch, kLetterbox, kCrop };
enum Head : int32_t { kNoHead, kClasses, kYoloRows, kYoloColumns, kLabels, kDetr, kBoxes, kGrid };
// Of a box: x, y, width, height; or left, top, right, bottom; with Yx, vertical numbers come first.
enum Form : int32_t { kCenter, kCorners, kCornersYx, kCenterYx };
// How boxes are written: as they are; as differences from anchors; or as of the heads of YOLO networks.
enum Coding : int32_t { kPlain, kDeltas, kLinearDeltas, kYoloV3, kYoloV5, kYoloX };
// Where the numbers of a grid are: all levels in one output, a row for each box; or each level in an output of its own,
// as rows for each anchor and cell, as planes for each anchor and number, or as numbers of each cell and anchor.
enum Storage : int32_t { kJoined, kRows, kPlanes, kCells };

constexpr int32_t kChannels = 3;
constexpr int32_t kLevels = 256;
constexpr int32_t kMostOperations = 3;
constexpr int32_t kLargestSide = 32768;           // of a picture
constexpr int64_t kMostPixels = int64_t{1} << 26;  // of a picture
constexpr int32_t kLargestInput = 4096;           // side of a model's input
constexpr int32_t kMostObjects = 1000;
constexpr int32_t kMostCandidates = 1 << 20;
constexpr int32_t kMostPoints = 1024;  // of an object
constexpr int32_t kMostPointNumbers = 3;
constexpr int32_t kMostPrototypes = 256;      // of masks
constexpr int32_t kLargestPrototype = 1024;  // side of one
constexpr int64_t kMostExtras = int64_t{1} << 20;  // key points, or coefficients of masks, of all objects
constexpr int32_t kMostLevels = 8;       // of anchors
constexpr int32_t kMostAnchors = 16;     // of a cell
constexpr int kFilterBits = 22;  // binary digits of a weight in Pillow

struct Operation {
  int32_t kind;  // steps::Arithmetic
  float values[kChannels];
};

// Anchors around the middle of each cell of a grid, which lies on the model's input.
struct Level {
  int32_t columns, rows;
  int32_t anchors;  // of each cell
  float step_x, step_y;  // from a cell to the next one
  float size[kMostAnchors][2];  // width and height
};

// Whether a format is that of a file.
inline bool IsFile(int32_t format) { return format == kJpeg || format == kPng; }

// Whether what is found has places in the picture.
inline bool FindsBoxes(int32_t head) { return head != kNoHead && head != kClasses && head != kLabels; }

// All numbers of a pipeline. Its layout is also written in toolchain/native/pictures.py.
struct Plan {
  int32_t width, height;   // of the model's input
  int32_t order;           // Order
  int32_t kernel;          // Kernel; kNone: pictures have the input's size
  int32_t fit;             // Fit
  int32_t short_side;      // kCrop: what the picture's shorter side becomes before the crop
  int32_t pad;             // kLetterbox: level of the margins, 0 to 255
  int32_t channels_first;  // NCHW, or else NHWC
  int32_t element;         // steps::Element
  int32_t operations;      // number of them; they are applied in order
  Operation operation[kMostOperations];
  int32_t head;        // Head
  int32_t softmax;     // whether scores are the softmax of the output
  int32_t most;        // objects of a result
  int32_t classes;     // of the output
  int32_t candidates;  // boxes of the output; kClasses: 1; kLabels: its rows
  float nms;           // boxes of a class that overlap more (intersection over union) are the same object
  float score;         // objects have a higher score
  int32_t blank;       // kLabels: class without a label
  int32_t beam;        // kLabels: width of the search; 0: the best label of each row
  int32_t points;         // key points of a box, after its classes
  int32_t point_numbers;  // of each: x, y, and its share of being visible if there are 3
  int32_t prototypes;     // of masks: a box has a coefficient of each, after its classes
  int32_t mask_width, mask_height;  // of a prototype, which lies on the model's input
  int32_t form;        // Form; kCornersYx: top, left, bottom, right
  int32_t shares;      // whether places are shares of the model's input, and not its pixels
  int32_t sigmoid;     // kBoxes, kGrid: whether scores are the sigmoid of the output
  int32_t background;  // kBoxes: number of the class that is no object, counted from 1; 0: there is none
  int32_t coding;      // Coding
  int32_t storage;     // Storage, of kGrid
  float variance[4];   // kDeltas, kLinearDeltas: factors of x, y, width, height
  float offset;        // kDeltas, kLinearDeltas: of an anchor's middle in its cell, in steps
  int32_t table;       // anchors that are passed as a table; 0: those of the levels
  int32_t levels;
  Level level[kMostLevels];
};

struct Values {
  const float* data;
  size_t count;
};

// What is read of a model's outputs; `boxes` of kBoxes alone, whose `scores` are in an output of their own, and
// `levels` of a kGrid that is not joined.
struct Outputs {
  const float* scores;
  size_t count;
  const float* boxes;
  size_t box_count;
  const Values* levels = nullptr;
};

// The middle and the size of an anchor, in pixels of the model's input.
struct Anchor {
  float x, y, width, height;
};

// A place in pixels of the picture, and how sure it is that it can be seen.
struct Point {
  float x, y, score;
};

// The pixels of a picture that lie in an object's box.
struct Area {
  int32_t left, top, width, height;
};

// Memory of the caller. Strides are the bytes from a row to the next one; 0: rows without gaps.
struct Picture {
  int32_t format;  // Format
  int32_t width, height;
  const uint8_t* data;
  size_t bytes, stride;
  const uint8_t* chroma;  // kNv12: the second plane; nullptr: it follows the first one
  size_t chroma_bytes, chroma_stride;
};

// Where a picture lies on the model's input.
struct Placement {
  int32_t width, height;  // of the resized picture
  int32_t left, top;      // where its first pixel is; negative where it is cropped
  double ratio_x, ratio_y;
};

// One dimension of a resize: from which elements of the picture each element of the result is made.
struct Axis {
  int32_t margin = 0;           // elements of the input before the picture
  std::vector<int32_t> first;   // first element of the picture, for each one of the result
  std::vector<int32_t> second;  // kOpenCv, kTorch: the next one
  std::vector<float> fraction;  // kTorch: share of the second
  std::vector<int32_t> taps;    // kPillow: number of elements
  std::vector<int32_t> weights;  // kPillow: `stride` for each one of the result; kOpenCv: two
  std::vector<double> scratch;
  int32_t stride = 0;

  int32_t size() const { return static_cast<int32_t>(first.size()); }
};

// The rows of a picture, converted one at a time to the plan's channels.
class Rows {
 public:
  Rows(const Picture& picture, int32_t order, std::vector<uint8_t>* line);
  int32_t channels() const { return order_ == kAsGray ? 1 : kChannels; }
  const uint8_t* At(int32_t row) const;  // valid until the next call

 private:
  template <int32_t order>
  void Convert(int32_t row, const uint8_t* from) const;

  Picture picture_;
  int32_t order_;
  uint8_t* line_;
};

// Each returns whether it works, or else gives the reason.
bool CheckPlan(const Plan& plan, Reason* reason);
// Also sets the strides and planes of a picture whose numbers agree.
bool CheckPicture(Picture* picture, Reason* reason);
// Whether a table has the plan's anchors, four numbers of each.
bool CheckTable(const Plan& plan, size_t numbers, Reason* reason);
// All anchors in the order of the boxes; `table` has four numbers of each in the plan's form and unit, if it is used.
std::vector<Anchor> MakeAnchors(const Plan& plan, const float* table);
// The box of differences from an anchor, which becomes x, y, width, height.
void Decode(const Plan& plan, const Anchor& anchor, float* box);
bool CheckSize(int32_t width, int32_t height, Reason* reason);
// The part of a picture that a box has, in the picture's own memory, and where it lies; of pairs of pixels, whole ones.
bool Crop(Picture picture, const Object& box, Picture* crop, Area* area, Reason* reason);
bool Place(const Plan& plan, int32_t width, int32_t height, Placement* place, Reason* reason);

void MakeAxis(int32_t kernel, int32_t from, int32_t resized, int32_t offset, int32_t input, Axis* axis);

// Not for use by two threads at the same time. After the first picture, another one of the same size
// allocates nothing.
class Pipeline {
 public:
  // The plan was checked, and so was its table.
  explicit Pipeline(const Plan& plan, const float* table = nullptr);

  // Takes all memory that any part of a picture of this size needs.
  void Reserve(int32_t width, int32_t height);

  // Fills the model's input: as many bytes as it has.
  bool Prepare(const Picture& picture, void* input, size_t bytes, Reason* reason);

  // Finds the objects that the outputs have for a picture of this size.
  bool Find(int32_t width, int32_t height, const Outputs& outputs, Reason* reason);

  // Those of the last call, the best first.
  const std::vector<Object>& objects() const { return objects_; }

  // The key points of these objects, `points` of each.
  const std::vector<Point>& points() const { return points_; }

  // The pixels of an object's mask, those of its box; there may be none.
  Area MaskArea(size_t object) const;

  // Writes a byte for each of these pixels, 1 where the object is. `prototypes` are those of the same run, `count`
  // floats, and a row begins `stride` bytes after the one before.
  bool FillMask(size_t object, const float* prototypes, size_t count, uint8_t* mask, size_t stride, Reason* reason);

  size_t input_bytes() const;

 private:
  bool MakeAxes(const Picture& picture, Reason* reason);
  template <typename Value>
  void Fill(const Rows& rows, Value* input);
  template <typename Value>
  void FillMargin(int32_t row, int32_t first, int32_t end, Value* input) const;
  template <typename Level, typename Value>
  void Store(int32_t row, const Level* levels, Value* input) const;
  template <typename Value>
  void Resample(const Rows& rows, Value* input);
  template <typename Value>
  void Nearest(const Rows& rows, Value* input);
  template <typename Value>
  void Filtered(const Rows& rows, Value* input);
  template <typename Value>
  void FixedPoint(const Rows& rows, Value* input);
  template <typename Value>
  void Floating(const Rows& rows, Value* input);
  void MakeTable();
  float Computed(float level, int32_t channel) const;
  float NumberOf(const float* output, size_t box, size_t number) const;
  bool CheckCounts(const Outputs& outputs, Reason* reason) const;
  void FindBoxes(const Outputs& outputs);
  void FindInGrid(const Outputs& outputs);
  void Suppress();
  void FindPoints(const Outputs& outputs);
  Point PointAt(float x, float y, float score) const;
  void FindCoefficients(const float* output);
  void AddPrototypes(const float* coefficients, const float* prototypes, const Area& area);

  const Plan plan_;
  const std::vector<Anchor> anchors_;
  steps::BeamSearch search_;
  int32_t channels_;
  int32_t known_width_ = 0, known_height_ = 0;  // for which the axes are
  int32_t reserved_width_ = 0, reserved_height_ = 0;
  Axis x_, y_;
  std::vector<uint32_t> table_;  // the element for each level of each channel
  std::vector<uint8_t> line_, levels_, filtered_;
  std::vector<int32_t> sums_[2];
  std::vector<float> blend_[2], row_;
  std::vector<Object> objects_, candidates_;
  std::vector<int32_t> ranks_, boxes_, found_;  // of candidates and of objects: numbers of their boxes
  std::vector<Point> points_;
  std::vector<float> coefficients_;
  std::vector<double> logits_;
  Placement place_ = {};  // of the last picture
  int32_t picture_width_ = 0, picture_height_ = 0;
};

}  // namespace pictures

#endif  // PICTURES_PICTURES_H_
