// From a kernel, a function on tensors, to a handler that a plugin may call.
#pragma once

#include "host/call.h"
#include "xla/ffi/api/c_api.h"

namespace tn::host {

using Kernel = void (*)(const Call& call);

// Worker threads of a kernel, those of the plugin (decision D18). Set before any handler runs.
void set_num_threads(int threads);

// Answers what XLA asks of a handler: its version, or one execution of `kernel`. Nothing thrown
// crosses into the plugin: it becomes the plugin's error.
XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame, Kernel kernel) noexcept;

// The handler of a kernel; XLA's has no place for data of its own.
template <Kernel kernel>
XLA_FFI_Error* handler(XLA_FFI_CallFrame* frame) {
  return handle(frame, kernel);
}

}  // namespace tn::host
