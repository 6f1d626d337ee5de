// Memory of the kernel module u-dma-buf.
#ifndef VTA_UDMABUF_H_
#define VTA_UDMABUF_H_

#include <string>
#include <vector>

#include "buffers.h"
#include "page_ranges.h"

namespace vta {

// Each of its devices has a fixed size, and buffers are parts of them.
class UdmabufDevices final : public DmaMemory {
 public:
  explicit UdmabufDevices(const System& system);
  ~UdmabufDevices() override;

  bool Exist() const { return !devices_.empty(); }

  std::string Name() const override { return "u-dma-buf"; }
  DmaBuffer Allocate(size_t bytes) override;
  void Free(const DmaBuffer& buffer) override;
  bool Coherent(const DmaBuffer& buffer) const override { return EntryOf(buffer).coherent; }
  void Flush(const DmaBuffer& buffer, size_t offset, size_t bytes) override;
  void Invalidate(const DmaBuffer& buffer, size_t offset, size_t bytes) override;

 private:
  struct Entry {
    std::string name;
    std::string folder;  // in sysfs
    uint64_t physical = 0;
    size_t size = 0;
    bool coherent = false;
    uint8_t* data = nullptr;  // where it is mapped while any of it is in use
    PageRanges taken;

    bool Has(const DmaBuffer& buffer) const {
      return data != nullptr && buffer.data >= data && buffer.data < data + size;
    }
  };

  void Find(const std::string& folder);
  static void CheckCached(const Entry& entry);
  Entry* Smallest(size_t bytes, size_t* first);
  void Map(Entry* entry);
  std::string Sizes() const;
  const Entry& EntryOf(const DmaBuffer& buffer) const;
  void Sync(const DmaBuffer& buffer, size_t offset, size_t bytes, const char* direction,
            const char* file) const;

  System system_;
  std::vector<Entry> devices_;
};

}  // namespace vta

#endif  // VTA_UDMABUF_H_
