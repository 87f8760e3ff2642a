#include "runtime/storage.h"

#include "runtime/device.h"
#include "runtime/segments.h"

namespace tn {

DeviceStorage::DeviceStorage(Device* device, Block* block, size_t bytes)
    : device(device), block(block), address(block ? block->address : 0), bytes(bytes) {
  if (block) block->owner.store(this, std::memory_order_relaxed);
}

DeviceStorage::~DeviceStorage() {
  if (block && !forked().load(std::memory_order_relaxed)) device->memory().release(block);
}

void DeviceStorage::unref_tensor() {
  const bool recording = is_recording_memory();
  if ((recording || use_count() > 1) && block && !forked().load(std::memory_order_relaxed)) {
    device->memory().deactivate(block, recording ? gather_stack(RecordStacks::kAll) : nullptr);
  }
  unref();
}

}  // namespace tn
