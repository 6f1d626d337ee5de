// The element types that safetensors files, release manifests and TVM have in common.
#ifndef MODEL_DTYPE_H_
#define MODEL_DTYPE_H_

#include <tvm/ffi/dtype.h>

#include <cstdint>
#include <string>
#include <vector>

namespace edge {

struct DType {
  const char* stored;  // as in a safetensors header: "F32"
  const char* name;    // as in a manifest, and TVM's name: "float32"
  DLDataType dl;
  int64_t bytes;
};

// Each returns nullptr for a type that is not in the table.
const DType* FindStoredDType(const std::string& stored);
const DType* FindNamedDType(const std::string& name);
const DType* FindDLDType(DLDataType type);

// The bytes of a tensor; -1 where they, or the distance between two of its elements, do not fit in 63
// bits, also where it has none: TVM multiplies all extents.
int64_t CountBytes(const DType& dtype, const std::vector<int64_t>& shape);

// "float32[1, 3]", for messages.
std::string Describe(const DType& dtype, const std::vector<int64_t>& shape);

}  // namespace edge

#endif  // MODEL_DTYPE_H_
