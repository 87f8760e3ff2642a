// Boxed kernels: the table's overloads, and the fallback for everything else (decisions D3, D8).
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch/dispatch/launch.h"

namespace c10 {
class OperatorHandle;
}  // namespace c10

namespace tn::torch_glue {

// Registers one boxed kernel on PrivateUse1 for each overload. `policies` by argument.
struct OverloadSpec {
  std::string name;  // "aten::add.Tensor"
  std::vector<NumberPolicy> policies;
  bool internal = false;  // called from C++ only: the dispatcher keeps PyTorch's own kernel
};
void register_overloads(const std::vector<OverloadSpec>& specs);

// The callable of a registered overload; throws when there is none.
Callable& overload(const std::string& name);

struct OverloadCount {
  std::string name;
  uint64_t calls;
};
std::vector<OverloadCount> executed_overloads();
void reset_overload_counts();

// What the fallback does first: may throw to refuse. Called with the overload's name and arguments.
using FallbackHook = std::function<void(const std::string&, c10::ArrayRef<c10::IValue>)>;
void set_fallback_hook(FallbackHook hook);
// Whether CPU copies of the arguments, which dispatch to `cpu_key`, find a kernel whose results the
// device can hold.
bool can_fall_back(const c10::OperatorHandle& op, c10::DispatchKey cpu_key);
// The same for an overload by name ("aten::roll") and for dense or sparse COO arguments.
bool has_fallback(const std::string& name);
// Counts a call whose arguments end the stack and that is about to run on the CPU. Throws
// NotImplementedError, uncounted, when `can_fall_back` says no; the hook may throw as well.
void record_fallback(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                     c10::DispatchKey cpu_key);

}  // namespace tn::torch_glue
