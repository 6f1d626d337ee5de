// See crops.h.
#include "crops.h"

#include <algorithm>

namespace edge {
namespace {

constexpr size_t kMostText = size_t{1} << 20;  // bytes that are taken before there is a text

}  // namespace

bool Crops::Begin(size_t most, const pictures::Plan& second, size_t longest) {
  crops_.clear();
  objects_.clear();
  points_.clear();
  texts_.clear();
  text_.clear();
  has_places_ = pictures::FindsBoxes(second.head);
  const size_t objects = most * static_cast<size_t>(second.most), points = objects * static_cast<size_t>(second.points);
  if (points > pictures::kMostExtras) return false;
  crops_.reserve(most);
  texts_.reserve(most);
  objects_.reserve(objects);
  points_.reserve(points);
  text_.reserve(std::min(most * (longest + 1), kMostText));
  return true;
}

void Crops::Add(const edge_object* box, const edge_objects& found, const pictures::Area& area) {
  const float left = static_cast<float>(area.left), top = static_cast<float>(area.top);
  crops_.push_back({box, found.count, objects_.data() + objects_.size(), nullptr});
  for (int32_t i = 0; i < found.count; ++i) {
    edge_object object = found.objects[i];
    if (has_places_) {
      object.left += left;
      object.right += left;
      object.top += top;
      object.bottom += top;
    }
    const edge_point* const from = object.points;
    object.points = points_.data() + points_.size();
    for (int32_t k = 0; k < object.point_count; ++k) points_.push_back({from[k].x + left, from[k].y + top, from[k].score});
    if (object.point_count == 0) object.points = nullptr;
    objects_.push_back(object);
  }
  texts_.push_back(text_.size());
  if (found.text != nullptr) text_ += found.text;
  text_.push_back('\0');
}

edge_crops Crops::Found(int32_t boxes) {
  for (size_t i = 0; i < crops_.size(); ++i) crops_[i].text = text_.data() + texts_[i];
  return {sizeof(edge_crops), static_cast<int32_t>(crops_.size()), sizeof(edge_crop), sizeof(edge_object), crops_.data(),
          boxes};
}

}  // namespace edge
