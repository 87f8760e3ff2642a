#include "runtime/storage.h"

#include "runtime/device.h"

namespace tn {

DeviceStorage::DeviceStorage(Device* device, uintptr_t address, size_t bytes)
    : device(device), address(address), bytes(bytes) {}

DeviceStorage::~DeviceStorage() {
  if (address && !forked().load(std::memory_order_relaxed)) device->arena().release(address, bytes);
}

}  // namespace tn
