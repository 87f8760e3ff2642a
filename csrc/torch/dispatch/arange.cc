// arange and range: how many elements there are depends on the values of the numbers, which are
// operands of the executable and not in its key. So the size is settled here, before the key is
// made: out= has it already when the rule is asked.

#include <ATen/Functions.h>
#include <torch/library.h>

#include "torch/dispatch/overloads.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

void fill(const char* name, const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
          const at::Tensor& out) {
  const c10::IValue arguments[] = {start, end, step, out};
  std::vector<c10::IValue> results;
  overload(name).call(arguments, results);
}

at::Tensor& into(const char* name, const at::Tensor& shape, const at::Scalar& start,
                 const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  const int64_t size = shape.numel();
  if (out.numel() != size) {
    if (out.numel() != 0)
      TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ",
                 out.numel(), " which does not match the computed number of elements ", size,
                 ". The tensor is resized.");
    out.resize_({size});
  }
  if (out.dim() == 1) {
    fill(name, start, end, step, out);
  } else {  // as many elements in another shape: that stays
    const at::Tensor flat = at::empty({size}, out.options());
    fill(name, start, end, step, flat);
    out.copy_(flat.view(out.sizes()));
  }
  return out;
}

at::Tensor no_elements(const at::Tensor& out) {
  return at::empty({0}, out.options().device(at::kMeta));
}

at::Tensor& neuron_arange_out(const at::Scalar& start, const at::Scalar& end,
                              const at::Scalar& step, at::Tensor& out) {
  at::Tensor shape = no_elements(out);
  at::arange_out(shape, start, end, step);
  return into("aten::arange.start_out", shape, start, end, step, out);
}

at::Tensor& neuron_range_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                             at::Tensor& out) {
  at::Tensor shape = no_elements(out);
  at::range_out(shape, start, end, step);
  return into("aten::range.out", shape, start, end, step, out);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("arange.start_out", TORCH_FN(neuron_arange_out));
  m.impl("range.out", TORCH_FN(neuron_range_out));
}

}  // namespace
}  // namespace tn::torch_glue
