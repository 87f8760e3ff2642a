#include "runtime/storage.h"

#include "runtime/device.h"

namespace tn {

DeviceStorage::DeviceStorage(Device* device, uintptr_t address, size_t bytes)
    : device(device), address(address), bytes(bytes) {
  if (address) device->arena().set_owner(address, this);
}

DeviceStorage::~DeviceStorage() {
  if (!address || forked().load(std::memory_order_relaxed)) return;
  device->arena().set_owner(address, nullptr);
  device->arena().release(address, bytes);
}

}  // namespace tn
