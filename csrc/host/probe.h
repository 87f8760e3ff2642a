// Whether a plugin runs our handlers (decision D1).
#pragma once

#include <string_view>

#include "base/status.h"
#include "pjrt/client.h"

namespace tn::host {

// Registers every host kernel with the client's plugin, once a process, then compiles and runs a
// program that calls one more. OK: that gave the right numbers. Otherwise a status that says what
// failed, and no program may name a handler. `compile_options`: a CompileOptionsProto.
Status enable_host_kernels(Client& client, std::string_view compile_options, int num_threads);

}  // namespace tn::host
