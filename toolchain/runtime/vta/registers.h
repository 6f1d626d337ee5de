// The registers of the FPGA's blocks, by physical address.
#ifndef VTA_REGISTERS_H_
#define VTA_REGISTERS_H_

#include <cstdint>
#include <map>
#include <string>

namespace vta {

class Registers {
 public:
  virtual ~Registers() = default;
  virtual uint32_t Read(uint64_t physical) = 0;
  virtual void Write(uint64_t physical, uint32_t value) = 0;
};

// Through /dev/mem, which only root may open. It belongs to one process of ours at a time.
class DevMem final : public Registers {
 public:
  // Throws Fault: the file is missing, or not for this user, or in use.
  explicit DevMem(const std::string& path);
  ~DevMem() override;
  DevMem(const DevMem&) = delete;
  DevMem& operator=(const DevMem&) = delete;

  uint32_t Read(uint64_t physical) override { return *Address(physical); }
  void Write(uint64_t physical, uint32_t value) override { *Address(physical) = value; }

 private:
  volatile uint32_t* Address(uint64_t physical);

  std::string path_;
  int file_ = -1;
  std::map<uint64_t, uint8_t*> pages_;  // by physical address
};

}  // namespace vta

#endif  // VTA_REGISTERS_H_
