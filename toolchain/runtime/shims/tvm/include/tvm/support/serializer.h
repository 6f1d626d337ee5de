// How values are laid out in TVM's streams: numbers little-endian in their own size, sequences as a
// 64-bit count and their elements. Written from how TVM's runtime uses it, like io.h.
#ifndef TVM_SUPPORT_SERIALIZER_H_
#define TVM_SUPPORT_SERIALIZER_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/endian.h>
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

static_assert(TVM_FFI_IO_NO_ENDIAN_SWAP, "streams are little-endian, and so is every device here");

namespace tvm {
namespace support {

// Numbers and enums.
template <typename T>
struct Serializer<T, std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>>> {
  static void Write(Stream* stream, T value) { stream->Write(&value, sizeof(T)); }
  static bool Read(Stream* stream, T* value) {
    return stream->Read(static_cast<void*>(value), sizeof(T)) == sizeof(T);
  }
};

template <>
struct Serializer<DLDataType> {
  static void Write(Stream* stream, const DLDataType& type) {
    stream->Write(type.code);
    stream->Write(type.bits);
    stream->Write(type.lanes);
  }
  static bool Read(Stream* stream, DLDataType* type) {
    return stream->Read(&type->code) && stream->Read(&type->bits) && stream->Read(&type->lanes);
  }
};

template <>
struct Serializer<DLDevice> {
  static void Write(Stream* stream, const DLDevice& device) {
    stream->Write(static_cast<int32_t>(device.device_type));
    stream->Write(static_cast<int32_t>(device.device_id));
  }
  static bool Read(Stream* stream, DLDevice* device) {
    int32_t type = 0;
    int32_t id = 0;
    if (!stream->Read(&type) || !stream->Read(&id)) return false;
    *device = {static_cast<DLDeviceType>(type), id};
    return true;
  }
};

template <>
struct Serializer<std::string> {
  static void Write(Stream* stream, const std::string& text) {
    stream->Write(static_cast<uint64_t>(text.size()));
    stream->Write(text.data(), text.size());
  }
  static bool Read(Stream* stream, std::string* text) {
    uint64_t size = 0;
    if (!stream->Read(&size)) return false;
    text->resize(static_cast<size_t>(size));
    return stream->Read(text->data(), text->size()) == size;
  }
};

template <>
struct Serializer<ffi::String> {
  static void Write(Stream* stream, const ffi::String& text) {
    stream->Write(static_cast<uint64_t>(text.size()));
    stream->Write(text.data(), text.size());
  }
  static bool Read(Stream* stream, ffi::String* text) {
    std::string read;
    if (!stream->Read(&read)) return false;
    *text = ffi::String(std::move(read));
    return true;
  }
};

template <typename T>
struct Serializer<std::vector<T>> {
  static void Write(Stream* stream, const std::vector<T>& values) {
    stream->Write(static_cast<uint64_t>(values.size()));
    stream->WriteArray(values.data(), values.size());
  }
  static bool Read(Stream* stream, std::vector<T>* values) {
    uint64_t size = 0;
    if (!stream->Read(&size)) return false;
    values->resize(static_cast<size_t>(size));
    return stream->ReadArray(values->data(), values->size());
  }
};

template <typename T>
struct Serializer<ffi::Array<T>> {
  static void Write(Stream* stream, const ffi::Array<T>& values) {
    stream->Write(static_cast<uint64_t>(values.size()));
    for (const T& value : values) stream->Write(value);
  }
  static bool Read(Stream* stream, ffi::Array<T>* values) {
    uint64_t size = 0;
    if (!stream->Read(&size)) return false;
    values->clear();
    for (uint64_t i = 0; i < size; ++i) {
      T value;
      if (!stream->Read(&value)) return false;
      values->push_back(value);
    }
    return true;
  }
};

}  // namespace support
}  // namespace tvm

#endif  // TVM_SUPPORT_SERIALIZER_H_
