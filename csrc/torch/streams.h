// Streams as PyTorch sees them: c10 streams by number, and the current one of each thread.
#pragma once

#include <c10/core/Stream.h>

#include "runtime/device.h"

namespace tn::torch_glue {

// This thread's current stream of a device: what launches go to.
Stream& current_stream(Device& device);
// Makes `stream` current for this thread, on its device. The current device stays.
void set_current_stream(Stream& stream);
// The runtime's stream; starts the runtime, and throws for a number that no stream has.
Stream& stream_of(const c10::Stream& stream);
c10::Stream to_c10(const Stream& stream);

}  // namespace tn::torch_glue
