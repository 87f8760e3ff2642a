#include "runtime/storage.h"

#include <utility>

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
  if (held.load(std::memory_order_relaxed) && block && use_count() == 2) {
    // Held launches need its contents and no address, and fused ones not even the contents.
    device->memory().release(std::exchange(block, nullptr));
  }
  const bool recording = is_recording_memory();
  if ((recording || use_count() > 1) && block && !forked().load(std::memory_order_relaxed)) {
    device->memory().deactivate(block, recording ? gather_stack(RecordStacks::kAll) : nullptr);
  }
  unref();
}

}  // namespace tn
