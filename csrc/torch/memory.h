// Giving storages memory of the modelled device, and saying why there is none left.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device.h"
#include "runtime/segments.h"

namespace tn::torch_glue {

// Thrown while the runtime's lock may be held; `with_memory_retry` turns it into OutOfMemoryError.
struct NoMemory {
  Device* device;
  size_t bytes;
  std::string purpose;  // " for ...", or empty
};

// A storage with an address and no buffer; throws OutOfMemoryError. Call without holding the
// runtime's lock.
Ref<DeviceStorage> new_storage(Device& device, size_t bytes, Layout layout);
// The same under `with_memory_retry`, with or without the runtime's lock; throws NoMemory.
Ref<DeviceStorage> place_storage(Device& device, size_t bytes, Layout layout,
                                 const StackContext& stack);
// Counts what a launch of the kernel needs for itself, if it is compiled; throws NoMemory. One that
// waits for its compile is charged when it is launched. Runtime::mutex is held.
void charge_temporaries(Device& device, Kernel& kernel);
// Remembers for reports that an operator made these tensors on behalf of the current Python line.
void note_origin(const std::vector<at::Tensor>& tensors, const std::string& operator_name);
// The text of Block::origin; empty for 0.
std::string origin_text(uint32_t origin);

// Frees what nobody needs: garbage cycles (exceptions hold frames, frames hold tensors) and
// storages that only waiting launches hold.
void free_garbage(Device& device);
[[noreturn]] void raise_out_of_memory(const NoMemory& request);

// Calls `f`, and once more after freeing garbage if it ran out of memory.
template <typename F>
auto with_memory_retry(F&& f) {
  Device* device = nullptr;
  try {
    return f();
  } catch (const NoMemory& request) {
    device = request.device;
  }
  free_garbage(*device);
  device->memory().note_retry();
  try {
    return f();
  } catch (const NoMemory& request) {
    raise_out_of_memory(request);
  }
}

}  // namespace tn::torch_glue
