// TVM's pools of workspaces, of which the CPU alone has any here, on ours.
#include <tvm/runtime/c_backend_api.h>
#include <workspace_pool.h>

#include <new>

#include "workspaces.h"

namespace {

// TVM's pool of a thread, and the C library's list of what ends with it.
void TakeOnce() {
  try {
    void* const memory = TVMBackendAllocWorkspace(kDLCPU, 0, 1, kDLFloat, 32);
    TVMBackendFreeWorkspace(kDLCPU, 0, memory);
  } catch (const std::bad_alloc&) {  // the first kernel will say so
  }
}

[[maybe_unused]] const bool is_set = (edge::prepare_thread = &TakeOnce, true);

}  // namespace

namespace tvm {
namespace runtime {

WorkspacePool::WorkspacePool(DLDeviceType device_type, DeviceAPI* device)
    : device_type_(device_type), device_(device) {}

WorkspacePool::~WorkspacePool() = default;

void* WorkspacePool::AllocWorkspace(Device, size_t size) {
  return edge::Workspaces::Current().Take(size, edge::IsWithinTask());
}

void WorkspacePool::FreeWorkspace(Device, void* memory) { edge::Workspaces::Current().Give(memory); }

}  // namespace runtime
}  // namespace tvm
