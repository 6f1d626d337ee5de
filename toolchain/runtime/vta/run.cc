// See run.h.
#include "run.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "fault.h"
#include "page_ranges.h"

namespace vta {
namespace {

// A step takes a cycle or two, at 100 MHz or more; what waits for memory takes longer.
constexpr double kSecondsPerStep = 1e-6;
constexpr double kLeastTimeout = 1.0;

// What may stay in a device's memory: several networks of that class of device.
constexpr uint64_t kMostResident = uint64_t{64} << 20;
// What was not run for so long makes room for others. Had it to be the oldest alone, a network that
// is a bit too large would find none of its layers: each would push out the one that comes next.
constexpr uint64_t kFresh = 1000;

Places PlacesIn(const Layout& layout, const std::vector<uint64_t>& placed, uint64_t kept,
                uint64_t brought) {
  Places places;
  places.uops = (layout.program_kept ? kept : brought) + layout.uops;
  for (size_t i = 0; i < layout.offsets.size(); ++i) {
    const uint64_t usual = (layout.kept[i] ? kept : brought) + layout.offsets[i];
    places.buffers.push_back(placed[i] != kNowhere ? placed[i] : usual);
  }
  return places;
}

}  // namespace

// Copies parts of a piece of memory, and flushes neighbours at once.
class Accelerator::Filler {
 public:
  Filler(Accelerator* accelerator, const DmaBuffer& memory)
      : device_(accelerator->device_.get()), memory_(memory), traffic_(&accelerator->traffic_) {}

  void PutProgram(const LoadedStream& stream, const Places& places, const Layout& layout) {
    const Stream& plain = stream.verified().stream();
    const std::vector<uint8_t> instructions = stream.InstructionsAt(places);
    Put(0, instructions.data(), instructions.size());
    Put(layout.uops, plain.uops.data(), plain.uops.size() * kUopBytes);
  }

  void Put(size_t offset, const void* data, size_t bytes) {
    if (bytes == 0) return;
    if (offset != ToPages(end_)) Flush();
    if (begin_ == end_) begin_ = offset;
    memcpy(memory_.data + offset, data, bytes);
    end_ = offset + bytes;
    traffic_->to_device += bytes;
  }

  void Flush() {
    if (begin_ != end_) device_->Flush(memory_, begin_, end_ - begin_);
    begin_ = end_ = 0;
  }

 private:
  Device* device_;
  const DmaBuffer& memory_;
  size_t begin_ = 0, end_ = 0;
  Traffic* traffic_;
};

Accelerator::~Accelerator() {
  for (const auto& one : residents_) device_->Free(one.second.memory);
  for (const void* one : results_.Places()) device_->Free(results_.Take(one));
  GiveMemoryBack();
}

void Accelerator::ForgetRefusals() { refused_ = refused_results_ = SIZE_MAX; }

void Accelerator::GiveMemoryBack() {
  if (memory_.data != nullptr) device_->Free(memory_);
  memory_ = {};
  ForgetRefusals();
}

void Accelerator::DropAt(std::map<Key, Resident>::iterator place) {
  traffic_.resident -= place->second.memory.size;
  device_->Free(place->second.memory);
  residents_.erase(place);
  ForgetRefusals();
}

void Accelerator::Drop(const Resident* resident) {
  for (auto one = residents_.begin(); one != residents_.end(); ++one) {
    if (&one->second == resident) return DropAt(one);
  }
}

void Accelerator::Forget(const std::vector<uint64_t>& constants) {
  const auto is_one = [&](uint64_t number) {
    return number != 0 && std::find(constants.begin(), constants.end(), number) != constants.end();
  };
  for (auto one = residents_.begin(); one != residents_.end();) {
    const std::vector<uint64_t>& numbers = one->first.second;
    const auto here = one++;
    if (std::any_of(numbers.begin(), numbers.end(), is_one)) DropAt(here);
  }
  for (const DmaBuffer& memory : results_.TakeOwned(constants)) DropResult(memory);
}

void Accelerator::DropResult(const DmaBuffer& memory) {
  if (memory.data == nullptr) return;
  traffic_.resident -= memory.size;
  device_->Free(memory);
  ForgetRefusals();
}

// Memory beside which there is as much as the largest of other runs needs: what stays cannot make
// room for one, as nobody else has it.
DmaBuffer Accelerator::AllocateBeside(size_t bytes, size_t others) {
  const DmaBuffer made = Allocate(bytes, 0, nullptr);
  try {
    device_->Free(Allocate(others, 0, nullptr));
    return made;
  } catch (const Fault&) {
    device_->Free(made);
    throw;
  }
}

// Where a result may stay, or kNowhere; what was in its place before is no longer.
uint64_t Accelerator::RoomFor(const TensorBytes& tensor, uint64_t owner, size_t brought) {
  if (!results_stay_) owner = 0;
  const Results::Kept* const known = owner != 0 ? results_.Reuse(tensor, owner) : nullptr;
  if (known != nullptr) return known->memory.physical;
  DropResult(results_.Take(tensor.data));
  const uint64_t bytes = ToPages(tensor.bytes);
  if (owner == 0 || traffic_.resident + bytes > kMostResident) return kNowhere;
  if (bytes >= refused_results_) return kNowhere;
  try {
    const DmaBuffer memory = AllocateBeside(bytes, std::max(memory_.size, brought));
    results_.Add(tensor, memory, owner);
    traffic_.resident += memory.size;
    return memory.physical;
  } catch (const Fault&) {
    refused_results_ = bytes;
    return kNowhere;
  }
}

// By buffer, where it is that is not brought by this run; kNowhere for all others.
std::vector<uint64_t> Accelerator::Stay(const LoadedStream& stream,
                                        const std::vector<TensorBytes>& tensors,
                                        const std::vector<uint64_t>& constants,
                                        const std::vector<bool>& stays) {
  const VerifiedStream& verified = stream.verified();
  const auto first = std::find_if(constants.begin(), constants.end(),
                                  [](uint64_t number) { return number != 0; });
  const uint64_t owner = first == constants.end() ? 0 : *first;
  std::vector<uint64_t> placed(tensors.size(), kNowhere);
  for (size_t i = 0; i < std::min(tensors.size(), stays.size()); ++i) {
    const bool written = verified.stream().buffers[i].written;
    if (stays[i] && !written) placed[i] = results_.Find(tensors[i]);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!verified.stream().buffers[i].written) continue;
    const bool may = i < stays.size() && stays[i] && verified.Overwrites(i);
    placed[i] = RoomFor(tensors[i], may ? owner : 0, stream.LayoutWith({}).brought_bytes);
  }
  return placed;
}

bool Accelerator::DropOldest(uint64_t unused_since, const Resident* but) {
  auto oldest = residents_.end();
  for (auto one = residents_.begin(); one != residents_.end(); ++one) {
    if (&one->second == but || one->second.last_run >= unused_since) continue;
    const bool older =
        oldest == residents_.end() || one->second.last_run < oldest->second.last_run;
    if (older) oldest = one;
  }
  if (oldest == residents_.end()) return false;
  DropAt(oldest);
  return true;
}

DmaBuffer Accelerator::Allocate(size_t bytes, uint64_t unused_since, const Resident* but) {
  DmaBuffer made;
  while (made.data == nullptr) {
    try {
      made = device_->Allocate(std::max<size_t>(bytes, kPage));
    } catch (const Fault&) {
      if (!DropOldest(unused_since, but)) throw;
    }
  }
  // Nothing of what the CPU wrote there before may reach DRAM after what the device will write.
  try {
    device_->Flush(made, 0, made.size);
  } catch (const Fault&) {
    device_->Free(made);
    throw;
  }
  return made;
}

const DmaBuffer& Accelerator::Memory(size_t bytes) {
  if (memory_.data != nullptr && memory_.size >= bytes) return memory_;
  GiveMemoryBack();
  try {
    memory_ = Allocate(bytes, UINT64_MAX, nullptr);
  } catch (const Fault& fault) {
    if (results_.Places().empty()) throw;
    results_stay_ = false;
    Fail(std::string(fault.what()) +
         "; results of other kernels took it, and no longer will: run the model anew");
  }
  return memory_;
}

// Whether there is memory for what a run of it brings, without giving up what it keeps.
bool Accelerator::HasMemoryBeside(const Resident* resident) {
  const size_t bytes = resident->layout.brought_bytes;
  if (memory_.data != nullptr && memory_.size >= bytes) return true;
  GiveMemoryBack();
  try {
    memory_ = Allocate(bytes, UINT64_MAX, resident);
    return true;
  } catch (const Fault&) {
    return false;
  }
}

Accelerator::Resident* Accelerator::Find(const LoadedStream& stream,
                                         const std::vector<uint64_t>& constants) {
  Key key(stream.number(), constants);
  const auto found = residents_.find(key);
  if (found != residents_.end()) return &found->second;
  Layout layout = stream.LayoutWith(constants);
  if (!layout.program_kept) return nullptr;
  const uint64_t stale = traffic_.runs > kFresh ? traffic_.runs - kFresh : 0;
  while (traffic_.resident + layout.kept_bytes > kMostResident) {
    if (!DropOldest(stale, nullptr)) return nullptr;
  }
  if (layout.kept_bytes >= refused_ && !DropOldest(stale, nullptr)) return nullptr;
  Resident made;
  try {
    made.memory = Allocate(layout.kept_bytes, stale, nullptr);
  } catch (const Fault&) {
    refused_ = layout.kept_bytes;
    return nullptr;
  }
  traffic_.resident += made.memory.size;
  made.layout = std::move(layout);
  return &residents_.emplace(std::move(key), std::move(made)).first->second;
}

void Accelerator::Run(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
                      const std::vector<uint64_t>& constants, const std::vector<bool>& stays) {
  stream.CheckTensors(tensors);
  ++traffic_.runs;
  Resident* const resident = Find(stream, constants);
  const bool kept = resident != nullptr && HasMemoryBeside(resident);
  if (resident != nullptr && !kept) Drop(resident);
  const std::vector<uint64_t> placed = Stay(stream, tensors, constants, stays);
  try {
    if (kept) return RunKept(stream, tensors, placed, resident);
    RunCopied(stream, tensors, placed);
  } catch (const Fault&) {
    for (size_t i = 0; i < tensors.size(); ++i) {  // nobody knows what is in them
      if (stream.verified().stream().buffers[i].written) DropResult(results_.Take(tensors[i].data));
    }
    throw;
  }
}

void Accelerator::RunCopied(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
                            const std::vector<uint64_t>& placed) {
  const Layout layout = stream.LayoutWith({});
  const DmaBuffer& memory = Memory(layout.brought_bytes);
  Filler filler(this, memory);
  filler.PutProgram(stream, PlacesIn(layout, placed, 0, memory.physical), layout);
  RunAt(stream, tensors, placed, layout, memory.physical, &filler);
}

void Accelerator::RunKept(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
                          const std::vector<uint64_t>& placed, Resident* resident) {
  resident->last_run = traffic_.runs;
  try {
    Places places =
        PlacesIn(resident->layout, placed, resident->memory.physical, memory_.physical);
    if (!resident->filled || !(resident->places == places)) {
      Fill(stream, tensors, std::move(places), resident);
    }
    Filler filler(this, memory_);
    RunAt(stream, tensors, placed, resident->layout, resident->memory.physical, &filler);
  } catch (const Fault&) {
    Drop(resident);  // nobody knows what is in it
    throw;
  }
}

void Accelerator::Fill(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
                       Places places, Resident* resident) {
  const Layout& layout = resident->layout;
  Filler filler(this, resident->memory);
  filler.PutProgram(stream, places, layout);
  for (size_t i = 0; i < tensors.size() && !resident->filled; ++i) {
    if (layout.kept[i]) filler.Put(layout.offsets[i], tensors[i].data, tensors[i].bytes);
  }
  filler.Flush();
  resident->places = std::move(places);
  resident->filled = true;
}

void Accelerator::RunAt(const LoadedStream& stream, const std::vector<TensorBytes>& tensors,
                        const std::vector<uint64_t>& placed, const Layout& layout,
                        uint64_t instructions, Filler* filler) {
  const VerifiedStream& verified = stream.verified();
  for (size_t i = 0; i < tensors.size(); ++i) {
    // What is written, too, unless the stream writes all of it.
    if (layout.kept[i] || placed[i] != kNowhere || verified.Overwrites(i)) continue;
    filler->Put(layout.offsets[i], tensors[i].data, tensors[i].bytes);
  }
  filler->Flush();
  Program program;
  program.instructions = instructions;
  program.count = verified.stream().InstructionCount();
  program.timeout_s = kLeastTimeout + kSecondsPerStep * static_cast<double>(verified.steps());
  device_->Run(program);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!verified.stream().buffers[i].written || placed[i] != kNowhere) continue;
    device_->Invalidate(memory_, layout.offsets[i], tensors[i].bytes);
    memcpy(tensors[i].data, memory_.data + layout.offsets[i], tensors[i].bytes);
    traffic_.from_device += tensors[i].bytes;
  }
}

}  // namespace vta
