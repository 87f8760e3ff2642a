// Custom-call handlers of a plugin, through PJRT's FFI extension.

#ifndef TN_PJRT_FFI_H_
#define TN_PJRT_FFI_H_

#include <string>

#include "base/status.h"
#include "pjrt/plugin.h"

namespace tn {

// Registers `handler`, an XLA_FFI_Handler*, as the target `name` of typed custom calls on the CPU.
// A plugin keeps it for the life of the process. OK says that the plugin took it, not that it will
// run: an older one may refuse it when a program that names it is compiled. UNIMPLEMENTED: the
// plugin has no FFI extension, or one without this call.
Status register_ffi_handler(const Plugin& plugin, const std::string& name, void* handler);

}  // namespace tn

#endif  // TN_PJRT_FFI_H_
