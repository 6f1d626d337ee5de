// What a second model finds in the boxes that a first one has found in a picture.
#ifndef LIBRARY_CROPS_H_
#define LIBRARY_CROPS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "../pictures/pictures.h"
#include "edge_model.h"

namespace edge {

// Its memory grows to what was needed most, and is kept.
class Crops {
 public:
  // Begins with no crops, and takes memory for `most` of them. In each, the second model finds what its plan allows, and
  // says a text of at most `longest` bytes. False if it may find more than there is memory for.
  bool Begin(size_t most, const pictures::Plan& second, size_t longest);

  // Adds what was found in the area that a box has: places in it become places in the picture.
  void Add(const edge_object* box, const edge_objects& found, const pictures::Area& area);

  // What was added, valid until the next call of Begin. `boxes` are all that the first model has found.
  edge_crops Found(int32_t boxes);

 private:
  bool has_places_ = false;  // whether the second model's objects have any
  std::vector<edge_crop> crops_;
  std::vector<edge_object> objects_;
  std::vector<edge_point> points_;
  std::vector<size_t> texts_;  // where each crop's text begins
  std::string text_;           // each with a 0 at its end
};

}  // namespace edge

#endif  // LIBRARY_CROPS_H_
