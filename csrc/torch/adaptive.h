// How eager operators run: one by one, waiting for each, or as what repeats is fused (decision
// D12).
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/device.h"

namespace tn::torch_glue {

enum class EagerMode : uint8_t { kPerOp, kAdaptive, kBlocking };

EagerMode eager_mode();
// For all threads. What is held is launched.
void set_eager_mode(EagerMode mode);

// Compiles in the background what a device's recorder asks for. Set once by the bindings; called
// without the runtime's lock.
void set_fuser(std::function<void(Device& device)> fuser);
void fuse(Device& device);

// Compiles in the background what waits in a device's queues and is due. Set once by the bindings;
// called without the runtime's lock.
void set_batcher(std::function<void(Device& device)> batcher);
void compile_batches(Device& device);

}  // namespace tn::torch_glue
