// PyTorch's own kernels for composite tensors (sparse, nested), used for this device as well.
//
// A composite tensor is a few dense ones. Its kernels that are registered for CPU and CUDA alike
// touch no element: they call dense operators, which the dispatcher brings to the tensors' device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>

namespace tn::torch_glue {

// Calls the kernel that the operator has for `key`.
class Borrowed final : public c10::OperatorKernel {
 public:
  explicit Borrowed(c10::DispatchKey key) : key_(key) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    op.callBoxedForDispatchKey(key_, *stack);
  }

 private:
  const c10::DispatchKey key_;
};

// Registers the kernels that `names` have for `key` with the library's own key.
template <size_t count>
void borrow(torch::Library& library, c10::DispatchKey key, const char* const (&names)[count]) {
  for (const char* name : names) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Borrowed>(key)));
  }
}

}  // namespace tn::torch_glue
