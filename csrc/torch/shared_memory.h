// Device contents in host memory that others see: what DLPack exports and imports need.
//
// Only a plugin whose buffers lie in host memory can share. A storage is *bound* to a block of host
// memory: its buffer is the plugin's view of the block. XLA's donation writes the block in place;
// what a launch leaves elsewhere is copied into the block, and the storage bound again.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <optional>

#include "runtime/storage.h"

namespace tn::torch_glue {

// Whether any storage is bound: launches look at their writes only then.
bool any_shared_memory();
// After a write to `storage`: waits for it and makes the shared block hold it.
void settle_shared_memory(DeviceStorage& storage);

// A CPU tensor over the contents of `tensor`, which is bound from now until the last such tensor is
// gone. Waits for the device. nullopt: this plugin cannot share.
std::optional<at::Tensor> export_to_host(const at::Tensor& tensor);
// A device tensor over the memory of a dense, 64-byte aligned CPU tensor that nobody writes;
// nullopt: this plugin cannot share.
std::optional<at::Tensor> import_read_only(const at::Tensor& host, int device);

}  // namespace tn::torch_glue
