// The safetensors format: a little-endian u64 header size, a JSON header, then the tensors' bytes.
#ifndef MODEL_SAFETENSORS_H_
#define MODEL_SAFETENSORS_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtype.h"
#include "files.h"
#include "json.h"

namespace edge {

struct TensorEntry {
  const DType* dtype;
  std::vector<int64_t> shape;
  uint64_t begin;  // offsets into the data part
  uint64_t end;
};

// A file whose header has been checked completely once it is constructed. Faults are kExitInput.
class SafetensorsFile {
 public:
  // With a digest, the file must have it, as of a MappedFile.
  explicit SafetensorsFile(const std::string& path, const FileDigest& digest = {});

  const std::string& path() const { return file_->path(); }
  Guard guard() const { return file_->guard(); }
  const std::map<std::string, TensorEntry>& entries() const { return entries_; }

  // What one tensor holds, where the file is mapped: with no alignment. The name must be one of the
  // entries'.
  std::string_view BytesOf(const std::string& name) const;

  // One tensor in memory aligned as TVM's generated code expects it, to be read only: that of the
  // file, which stays mapped for as long as the tensor lives, or a copy where the file has it unaligned.
  tvm::ffi::Tensor Load(const std::string& name) const;

  // Gives the file's pages back once they are copied.
  void DropPages() const { file_->DropPages(); }

 private:
  std::string_view ReadHeader();
  void AddEntry(const std::string& name, const JsonNode& node);
  void CheckLayout() const;

  std::shared_ptr<const MappedFile> file_;
  std::string_view data_;
  std::map<std::string, TensorEntry> entries_;
};

// Writes contiguous CPU tensors of the types in dtype.h, atomically.
void WriteSafetensors(const std::string& path,
                      const std::vector<std::pair<std::string, tvm::ffi::Tensor>>& tensors);

}  // namespace edge

#endif  // MODEL_SAFETENSORS_H_
