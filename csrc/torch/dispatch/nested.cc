// Nested tensors. Of the jagged layout PyTorch's Python does all but the ways to a padded tensor
// and back. The strided layout, which attention over jagged rows goes through, is a buffer on the
// device with sizes on the host; its kernels are borrowed.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <array>
#include <tuple>
#include <vector>

#include "torch/dispatch/borrowed.h"
#include "torch/dispatch/overloads.h"

namespace tn::torch_glue {
namespace {

at::Tensor neuron_padded_to_jagged(const at::Tensor& dense, at::TensorList offsets,
                                   std::optional<int64_t> total_rows) {
  TORCH_CHECK(offsets.size() == 1,
              "_padded_dense_to_jagged_forward: expected offsets of one jagged dimension, got ",
              offsets.size());
  // Not told, it is read from the device.
  const int64_t total = total_rows ? *total_rows : offsets[0].select(0, -1).item<int64_t>();
  const c10::IValue arguments[] = {dense, c10::List<at::Tensor>(offsets.vec()), total};
  std::vector<c10::IValue> results;
  overload("aten::_padded_dense_to_jagged_forward").call(arguments, results);
  return results.at(0).toTensor();
}

constexpr const char* kStrided[] = {
    // parts, copies, shapes
    "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets",
    "_nested_from_padded_and_nested_example", "is_same_size", "alias", "detach", "clone", "copy_",
    "_to_copy", "empty_like", "ones_like", "values", "unbind.int", "select.int",
    "_nested_select_backward", "chunk", "split_with_sizes", "narrow", "squeeze", "squeeze.dim",
    "squeeze.dims", "unsqueeze", "transpose.int", "view", "cat", "to_padded_tensor",
    // arithmetic
    "add.Tensor", "add_.Tensor", "sub.Tensor", "mul.Tensor", "mul_.Tensor", "mul.Scalar",
    "mul_.Scalar", "div.Tensor", "div.Scalar", "neg", "neg_", "abs", "abs_", "sgn", "sgn_", "sqrt",
    "sin", "cos", "tanh", "tanh_", "relu", "relu_", "gelu", "gelu_", "gelu_backward", "silu",
    "silu_", "silu_backward", "threshold_backward", "isnan", "isinf", "isposinf", "isneginf",
    "logical_not", "logical_not_", "all.dim", "eq.Scalar", "eq.Tensor", "ge.Scalar", "gt.Scalar",
    "where.self", "where.self_out", "masked_fill.Scalar", "fill_.Scalar", "fill_.Tensor", "zero_",
    "normal_",
    // layers
    "matmul", "matmul.out", "matmul_backward", "bmm", "linear", "linear_backward", "embedding",
    "_softmax", "_softmax_backward_data", "_safe_softmax", "_nested_tensor_softmax_with_shape",
    "native_dropout", "native_dropout_backward"};

// Made from dense tensors of the device.
constexpr const char* kFromDense[] = {"_nested_view_from_buffer", "_nested_from_padded",
                                      "_nested_tensor_from_mask",
                                      "_nested_tensor_from_mask_left_aligned"};

// Sizes are on the host wherever the buffer is; here they were given on the device.
std::tuple<at::Tensor, at::Tensor> neuron_strides_offsets(const at::Tensor& sizes) {
  return at::_nested_compute_contiguous_strides_offsets(sizes.cpu());
}

// All rows of a nested tensor as one dense tensor: (rows, *shape).
at::Tensor rows_of(const at::Tensor& nested, c10::SymIntArrayRef shape) {
  std::vector<c10::SymInt> sizes{-1};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return nested.contiguous().values().reshape_symint(sizes);
}

at::Tensor nested_like(const at::Tensor& rows, const at::Tensor& example) {
  const at::Tensor sizes = example._nested_tensor_size();
  const auto [strides, offsets] = at::_nested_compute_contiguous_strides_offsets(sizes);
  return at::_nested_view_from_buffer(rows.reshape({-1}), sizes, strides, offsets);
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Three neuron_layer_norm(const at::Tensor& input, c10::SymIntArrayRef shape,
                        const std::optional<at::Tensor>& weight,
                        const std::optional<at::Tensor>& bias, double eps) {
  auto [out, mean, rstd] =
      at::native_layer_norm_symint(rows_of(input, shape), shape, weight, bias, eps);
  return {nested_like(out, input), mean, rstd};
}

Three neuron_layer_norm_backward(const at::Tensor& grad, const at::Tensor& input,
                                 c10::SymIntArrayRef shape, const at::Tensor& mean,
                                 const at::Tensor& rstd, const std::optional<at::Tensor>& weight,
                                 const std::optional<at::Tensor>& bias,
                                 std::array<bool, 3> wanted) {
  auto [of_input, of_weight, of_bias] = at::native_layer_norm_backward_symint(
      rows_of(grad, shape), rows_of(input, shape), shape, mean, rstd, weight, bias, wanted);
  return {wanted[0] ? nested_like(of_input, input) : at::Tensor(), of_weight, of_bias};
}

// The fast path of torch.nn.TransformerEncoder with a padding mask in evaluation: padded again,
// since one attention over all rows is quicker than one for each sequence.
at::Tensor neuron_encoder_layer(const at::Tensor& src, int64_t embed_dim, int64_t num_heads,
                                const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
                                const at::Tensor& proj_weight, const at::Tensor& proj_bias,
                                bool use_gelu, bool norm_first, double eps,
                                const at::Tensor& norm_weight_1, const at::Tensor& norm_bias_1,
                                const at::Tensor& norm_weight_2, const at::Tensor& norm_bias_2,
                                const at::Tensor& ffn_weight_1, const at::Tensor& ffn_bias_1,
                                const at::Tensor& ffn_weight_2, const at::Tensor& ffn_bias_2,
                                const std::optional<at::Tensor>& mask,
                                std::optional<int64_t> /*mask_type*/) {
  TORCH_CHECK(!mask || !mask->defined(), "NestedTensor with mask is not supported yet");
  const at::Tensor padded = at::nested_to_padded_tensor(src, 0.0);
  const at::Tensor lengths = src._nested_tensor_size().select(1, 0).to(padded.device());
  const at::Tensor beyond = at::arange(padded.size(1), lengths.options()) >= lengths.unsqueeze(1);
  constexpr int64_t kKeyPadding = 1;
  const at::Tensor result = at::_transformer_encoder_layer_fwd(
      padded, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu,
      norm_first, eps, norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1,
      ffn_bias_1, ffn_weight_2, ffn_bias_2, beyond, kKeyPadding);
  return at::_nested_from_padded_and_nested_example(result, src);
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  borrow(m, c10::DispatchKey::NestedTensorCPU, kStrided);
  m.impl("native_layer_norm", TORCH_FN(neuron_layer_norm));
  m.impl("native_layer_norm_backward", TORCH_FN(neuron_layer_norm_backward));
  m.impl("_transformer_encoder_layer_fwd", TORCH_FN(neuron_encoder_layer));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  borrow(m, c10::DispatchKey::CPU, kFromDense);
  m.impl("_nested_compute_contiguous_strides_offsets", TORCH_FN(neuron_strides_offsets));
  m.impl("_padded_dense_to_jagged_forward", TORCH_FN(neuron_padded_to_jagged));
}

}  // namespace
}  // namespace tn::torch_glue
