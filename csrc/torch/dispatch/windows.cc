// kaiser_window: PyTorch's kernel for every device fills it with a kernel that only CPU and CUDA
// have. Its other windows are written in terms of operators.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/library.h>

namespace tn::torch_glue {
namespace {

// PyTorch's default shape parameter.
constexpr double kBeta = 12.0;

at::Tensor neuron_kaiser_window_beta(int64_t window_length, bool periodic, double beta,
                                     std::optional<c10::ScalarType> dtype,
                                     std::optional<c10::Layout> layout,
                                     std::optional<c10::Device> device,
                                     std::optional<bool> pin_memory) {
  const c10::ScalarType type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  TORCH_CHECK(!layout || *layout == at::kStrided,
              "kaiser_window is not implemented for sparse types, got: ", *layout);
  TORCH_CHECK(at::isFloatingType(type) || at::isComplexType(type),
              "kaiser_window expects floating point dtypes, got: ", type);
  TORCH_CHECK(window_length >= 0,
              "kaiser_window requires non-negative window_length, got window_"
              "length=",
              window_length);
  const at::TensorOptions options =
      at::TensorOptions().dtype(type).device(device).pinned_memory(pin_memory);
  if (window_length == 0) return at::empty({0}, options);
  if (window_length == 1) return at::ones({1}, options);
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(type), "\"kaiser_window\" not implemented for '",
                              type, "'");
  // In a narrow dtype the positions of a long window would not be whole numbers any more.
  const c10::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  const double half = static_cast<double>(periodic ? window_length : window_length - 1) / 2;
  const at::Tensor position = at::arange(window_length, options.dtype(wide));
  const at::Tensor ratio = (position - half) / half;
  const at::Tensor root = (1 - ratio * ratio).clamp_min(0).sqrt();
  const at::Tensor scale = at::i0(at::full({}, beta, options.dtype(wide)));
  return (at::i0(root * beta) / scale).to(type);
}

at::Tensor neuron_kaiser_window_periodic(int64_t window_length, bool periodic,
                                         std::optional<c10::ScalarType> dtype,
                                         std::optional<c10::Layout> layout,
                                         std::optional<c10::Device> device,
                                         std::optional<bool> pin_memory) {
  return neuron_kaiser_window_beta(window_length, periodic, kBeta, dtype, layout, device,
                                   pin_memory);
}

at::Tensor neuron_kaiser_window(int64_t window_length, std::optional<c10::ScalarType> dtype,
                                std::optional<c10::Layout> layout,
                                std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  return neuron_kaiser_window_beta(window_length, true, kBeta, dtype, layout, device, pin_memory);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("kaiser_window", TORCH_FN(neuron_kaiser_window));
  m.impl("kaiser_window.periodic", TORCH_FN(neuron_kaiser_window_periodic));
  m.impl("kaiser_window.beta", TORCH_FN(neuron_kaiser_window_beta));
}

}  // namespace
}  // namespace tn::torch_glue
