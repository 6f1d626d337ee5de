// The byte streams that TVM's runtime saves to and loads from. TVM's wheel ships its sources
// without this header: this one is written from how they use it.
#ifndef TVM_SUPPORT_IO_H_
#define TVM_SUPPORT_IO_H_

#include <cstddef>

namespace tvm {
namespace support {

// How a type is written to a stream and read back; see serializer.h.
template <typename T, typename Enable = void>
struct Serializer;

class Stream {
 public:
  virtual ~Stream() = default;

  // Return how many bytes were read or written.
  virtual size_t Read(void* data, size_t size) = 0;
  virtual size_t Write(const void* data, size_t size) = 0;

  template <typename T>
  void Write(const T& value) {
    Serializer<T>::Write(this, value);
  }

  // Reading returns whether the stream held that much.
  template <typename T>
  bool Read(T* value) {
    return Serializer<T>::Read(this, value);
  }

  template <typename T>
  void WriteArray(const T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) Serializer<T>::Write(this, values[i]);
  }

  template <typename T>
  bool ReadArray(T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (!Serializer<T>::Read(this, values + i)) return false;
    }
    return true;
  }

  // Characters, the bulk of what is sent, go as they are.
  void WriteArray(const char* values, size_t count) { Write(values, count); }
  bool ReadArray(char* values, size_t count) { return Read(values, count) == count; }
};

}  // namespace support
}  // namespace tvm

#endif  // TVM_SUPPORT_IO_H_
