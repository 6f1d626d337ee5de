// See dtype.h.
#include "dtype.h"

#include <algorithm>

namespace edge {
namespace {

constexpr DType Row(const char* stored, const char* name, DLDataTypeCode code, uint8_t bits) {
  return {stored, name, DLDataType{static_cast<uint8_t>(code), bits, 1}, bits / 8};
}

constexpr DType kTable[] = {
    Row("F16", "float16", kDLFloat, 16), Row("BF16", "bfloat16", kDLBfloat, 16),
    Row("F32", "float32", kDLFloat, 32), Row("F64", "float64", kDLFloat, 64),
    Row("I8", "int8", kDLInt, 8),        Row("U8", "uint8", kDLUInt, 8),
    Row("I16", "int16", kDLInt, 16),     Row("U16", "uint16", kDLUInt, 16),
    Row("I32", "int32", kDLInt, 32),     Row("U32", "uint32", kDLUInt, 32),
    Row("I64", "int64", kDLInt, 64),     Row("U64", "uint64", kDLUInt, 64),
    Row("BOOL", "bool", kDLBool, 8),
};

template <typename Matches>
const DType* FindRow(Matches matches) {
  for (const DType& row : kTable) {
    if (matches(row)) return &row;
  }
  return nullptr;
}

}  // namespace

const DType* FindStoredDType(const std::string& stored) {
  return FindRow([&](const DType& row) { return stored == row.stored; });
}

const DType* FindNamedDType(const std::string& name) {
  return FindRow([&](const DType& row) { return name == row.name; });
}

const DType* FindDLDType(DLDataType type) {
  return FindRow([&](const DType& row) {
    return row.dl.code == type.code && row.dl.bits == type.bits && row.dl.lanes == type.lanes;
  });
}

int64_t CountBytes(const DType& dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = dtype.bytes;
  bool empty = false;
  for (const int64_t extent : shape) {
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(extent, 1), &bytes)) return -1;
  }
  return empty ? 0 : bytes;
}

std::string Describe(const DType& dtype, const std::vector<int64_t>& shape) {
  std::string text = std::string(dtype.name) + "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace edge
