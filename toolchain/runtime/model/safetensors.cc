// See safetensors.h. A file comes from outside: each number in it is checked before it is used.
#include "safetensors.h"

#include <algorithm>
#include <cstring>

#include "fault.h"
#include "host_tensor.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors data is little-endian");

namespace edge {
namespace {

using tvm::ffi::Tensor;

constexpr size_t kSizeBytes = sizeof(uint64_t);
constexpr size_t kPiece = 1 << 22;
constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the format's reference implementation

// A tensor whose memory is that of a mapped file.
struct PartOfFile {
  std::shared_ptr<const MappedFile> file;
  const char* data;

  void AllocData(DLTensor* tensor) const { tensor->data = const_cast<char*>(data); }
  void FreeData(DLTensor*) const {}
};

std::string_view TensorBytes(const Tensor& tensor) {
  return {DataOf(tensor), SizeOf(tensor)};
}

json::Object DescribeTensor(const Tensor& tensor, uint64_t begin, uint64_t end) {
  json::Array shape;
  for (int64_t extent : tensor.shape()) shape.push_back(extent);
  json::Object entry;
  entry.Set(tvm::ffi::String("dtype"), tvm::ffi::String(FindDLDType(tensor.dtype())->stored));
  entry.Set(tvm::ffi::String("shape"), shape);
  entry.Set(tvm::ffi::String("data_offsets"),
            json::Array{static_cast<int64_t>(begin), static_cast<int64_t>(end)});
  return entry;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path, const FileDigest& digest)
    : file_(std::make_shared<MappedFile>(path, digest)) {
  const JsonNode header = JsonNode::ParseObject(ReadHeader(), path);
  for (const std::string& name : header.Keys()) {
    if (name != "__metadata__") AddEntry(name, header.Get(name));
  }
  CheckLayout();
}

// Sets the data part and returns the header part.
std::string_view SafetensorsFile::ReadHeader() {
  const std::string_view bytes = file_->bytes();
  if (bytes.size() < kSizeBytes) {
    throw Fault(kExitInput, "not a safetensors file: shorter than 8 bytes", path());
  }
  uint64_t size = 0;
  memcpy(&size, bytes.data(), kSizeBytes);
  const uint64_t rest = bytes.size() - kSizeBytes;
  if (size > kMaxHeader || size > rest) {
    throw Fault(kExitInput,
                "not a safetensors file, or truncated: its header should have " +
                    std::to_string(size) + " bytes, the file has " + std::to_string(rest),
                path());
  }
  data_ = bytes.substr(kSizeBytes + size);
  return bytes.substr(kSizeBytes, size);
}

void SafetensorsFile::AddEntry(const std::string& name, const JsonNode& node) {
  const std::string stored = node.Get("dtype").Text();
  TensorEntry entry{FindStoredDType(stored), node.Shape("shape"), 0, 0};
  if (entry.dtype == nullptr) node.Fail("has the unknown dtype \"" + stored + "\"");

  const std::vector<int64_t> offsets = node.Shape("data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1]) node.Fail("has invalid data_offsets");
  entry.begin = static_cast<uint64_t>(offsets[0]);
  entry.end = static_cast<uint64_t>(offsets[1]);
  if (entry.end > data_.size()) {
    node.Fail("ends at byte " + std::to_string(entry.end) + " of " + std::to_string(data_.size()) +
              " bytes of data: the file is truncated");
  }
  const int64_t bytes = CountBytes(*entry.dtype, entry.shape);
  if (bytes < 0) node.Fail("has a shape that overflows");
  const uint64_t needed = static_cast<uint64_t>(bytes);
  if (needed != entry.end - entry.begin) {
    node.Fail("is " + Describe(*entry.dtype, entry.shape) + " and needs " + std::to_string(needed) +
              " bytes, its data_offsets span " + std::to_string(entry.end - entry.begin));
  }
  entries_.emplace(name, std::move(entry));
}

// The format allows neither overlaps nor holes; either is a sign of damage.
void SafetensorsFile::CheckLayout() const {
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  for (const auto& [name, entry] : entries_) spans.emplace_back(entry.begin, entry.end);
  std::sort(spans.begin(), spans.end());
  uint64_t reached = 0;
  for (const auto& [begin, end] : spans) {
    if (begin != reached) {
      throw Fault(kExitInput,
                  "the tensors overlap or leave a hole at byte " + std::to_string(reached), path());
    }
    reached = end;
  }
  if (reached != data_.size()) {
    throw Fault(kExitInput,
                "the tensors end at byte " + std::to_string(reached) + " of " +
                    std::to_string(data_.size()) + " bytes of data",
                path());
  }
}

std::string_view SafetensorsFile::BytesOf(const std::string& name) const {
  const TensorEntry& entry = entries_.at(name);
  return data_.substr(entry.begin, entry.end - entry.begin);
}

Tensor SafetensorsFile::Load(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw Fault(kExitInput, "has no tensor \"" + name + "\"", path());
  const TensorEntry& entry = found->second;
  const std::string_view bytes = BytesOf(name);
  if (IsAligned(bytes.data())) {
    file_->LoadPages(bytes);
    return Tensor::FromNDAlloc(PartOfFile{file_, bytes.data()},
                               tvm::ffi::ShapeView(entry.shape.data(), entry.shape.size()),
                               entry.dtype->dl, DLDevice{kDLCPU, 0});
  }
  Tensor tensor = HostTensor(*entry.dtype, entry.shape);
  // In pieces, so that no large tensor is in memory twice.
  for (size_t at = 0; at < bytes.size(); at += kPiece) {
    const std::string_view piece = bytes.substr(at, kPiece);
    memcpy(DataOf(tensor) + at, piece.data(), piece.size());
    file_->DropPages(piece);
  }
  return tensor;
}

void WriteSafetensors(const std::string& path,
                      const std::vector<std::pair<std::string, Tensor>>& tensors) {
  // Wide elements first keeps every tensor aligned to its element size.
  auto ordered = tensors;
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& left, const auto& right) {
    return left.second.dtype().bits > right.second.dtype().bits;
  });
  json::Object header;
  std::vector<std::string_view> parts(2);
  uint64_t reached = 0;
  for (const auto& [name, tensor] : ordered) {
    const std::string_view bytes = TensorBytes(tensor);
    header.Set(tvm::ffi::String(name), DescribeTensor(tensor, reached, reached + bytes.size()));
    parts.push_back(bytes);
    reached += bytes.size();
  }
  std::string text(json::Stringify(header));
  text.resize((text.size() + kSizeBytes - 1) / kSizeBytes * kSizeBytes, ' ');
  const uint64_t size = text.size();
  parts[0] = {reinterpret_cast<const char*>(&size), kSizeBytes};
  parts[1] = text;
  WriteAtomically(path, parts);
}

}  // namespace edge
