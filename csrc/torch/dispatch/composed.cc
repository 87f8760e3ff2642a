// Kernels that PyTorch expects of a device and that are a few of its other kernels.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_embedding_bag_sparse_backward.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "torch/dispatch/overloads.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

at::Tensor run(const char* name, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<c10::IValue> results;
  overload(name).call(arguments, results);
  return results.at(0).toTensor();
}

at::Tensor fresh(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory) {
  return at::empty(sizes, at::TensorOptions()
                              .dtype(dtype.value_or(at::kLong))
                              .layout(layout)
                              .device(device)
                              .pinned_memory(pin_memory));
}

// Elements of a row x col matrix with column - row <= offset.
int64_t lower_count(int64_t row, int64_t col, int64_t offset) {
  int64_t total = 0;
  for (int64_t i = 0; i < row; ++i) {
    total += std::clamp<int64_t>(i + offset + 1, 0, col);
  }
  return total;
}

void check_triangle(int64_t row, int64_t col, std::optional<c10::Layout> layout) {
  TORCH_CHECK(row >= 0, "row must be non-negative, got", row);
  TORCH_CHECK(col >= 0, "col must be non-negative, got", col);
  TORCH_CHECK(!layout || *layout == at::kStrided, "only support layout=torch.strided, got",
              *layout);
}

at::Tensor neuron_tril_indices(int64_t row, int64_t col, int64_t offset,
                               std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory) {
  check_triangle(row, col, layout);
  at::Tensor out = fresh({2, lower_count(row, col, offset)}, dtype, layout, device, pin_memory);
  return out.numel() == 0 ? out : at::tril_indices_out(out, row, col, offset);
}

at::Tensor neuron_triu_indices(int64_t row, int64_t col, int64_t offset,
                               std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory) {
  check_triangle(row, col, layout);
  const int64_t count = row * col - lower_count(row, col, offset - 1);
  at::Tensor out = fresh({2, count}, dtype, layout, device, pin_memory);
  return out.numel() == 0 ? out : at::triu_indices_out(out, row, col, offset);
}

bool neuron_is_set_to(const at::Tensor& self, const at::Tensor& source) {
  return self.storage().unsafeGetStorageImpl() == source.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == source.storage_offset() && self.sizes() == source.sizes() &&
         self.strides() == source.strides();
}

// Takes any dtype of out=, unlike PyTorch's meta kernel.
at::Tensor& neuron_bernoulli_out(const at::Tensor& self, std::optional<at::Generator> generator,
                                 at::Tensor& out) {
  TORCH_CHECK(out.device() == self.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              self.device(), " and ", out.device(), "!");
  return out.resize_(self.sizes()).bernoulli_(self, std::move(generator));
}

void copy_results(const std::tuple<at::Tensor, at::Tensor>& from, at::Tensor& values,
                  at::Tensor& indices) {
  values.resize_(std::get<0>(from).sizes()).copy_(std::get<0>(from));
  indices.resize_(std::get<1>(from).sizes()).copy_(std::get<1>(from));
}

void neuron_cummax_helper(const at::Tensor& self, at::Tensor& values, at::Tensor& indices,
                          int64_t dim) {
  copy_results(at::cummax(self, dim), values, indices);
}

void neuron_cummin_helper(const at::Tensor& self, at::Tensor& values, at::Tensor& indices,
                          int64_t dim) {
  copy_results(at::cummin(self, dim), values, indices);
}

at::Tensor neuron_repeat_interleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
              "repeats has to be Long or Int tensor");
  if (repeats.numel() == 0) return at::empty_like(repeats);
  const int64_t total = output_size ? *output_size : repeats.sum().item<int64_t>();
  TORCH_CHECK(total >= 0, "repeats can not be negative");
  const c10::IValue arguments[] = {repeats, total};
  return run("aten::repeat_interleave.Tensor", arguments);
}

at::Tensor neuron_embedding_bag_backward(const at::Tensor& grad, const at::Tensor& indices,
                                         const at::Tensor& offsets, const at::Tensor& offset2bag,
                                         const at::Tensor& bag_size,
                                         const at::Tensor& maximum_indices, int64_t num_weights,
                                         bool scale_grad_by_freq, int64_t mode, bool sparse,
                                         const std::optional<at::Tensor>& per_sample_weights,
                                         int64_t padding_idx) {
  if (sparse) {
    return at::_embedding_bag_sparse_backward(grad, indices, offsets, offset2bag, bag_size,
                                              num_weights, scale_grad_by_freq, mode,
                                              per_sample_weights, padding_idx);
  }
  return at::_embedding_bag_dense_backward(grad, indices, offset2bag, bag_size, maximum_indices,
                                           num_weights, scale_grad_by_freq, mode,
                                           per_sample_weights, padding_idx);
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> neuron_slow_conv2d_backward_out(
    const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& weight,
    c10::IntArrayRef kernel_size, c10::IntArrayRef stride, c10::IntArrayRef padding,
    at::Tensor& grad_input, at::Tensor& grad_weight, at::Tensor& grad_bias) {
  const auto grads = at::_slow_conv2d_backward(grad_output, self, weight, kernel_size, stride,
                                               padding, std::array<bool, 3>{true, true, true});
  copy_results({std::get<0>(grads), std::get<1>(grads)}, grad_input, grad_weight);
  grad_bias.resize_(std::get<2>(grads).sizes()).copy_(std::get<2>(grads));
  return {grad_input, grad_weight, grad_bias};
}

std::vector<int64_t> on_host(const at::Tensor& lengths) {
  TORCH_CHECK(at::isIntegralType(lengths.scalar_type(), false), "lengths must be integral");
  const at::Tensor host = lengths.to(at::Device(at::kCPU), at::kLong).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

std::tuple<at::Tensor, at::Tensor> neuron_ctc_loss(const at::Tensor& log_probs,
                                                   const at::Tensor& targets,
                                                   const at::Tensor& input_lengths,
                                                   const at::Tensor& target_lengths, int64_t blank,
                                                   bool zero_infinity) {
  return at::_ctc_loss(log_probs, targets, on_host(input_lengths), on_host(target_lengths), blank,
                       zero_infinity);
}

at::Tensor neuron_ctc_loss_backward(const at::Tensor& grad, const at::Tensor& log_probs,
                                    const at::Tensor& targets, const at::Tensor& input_lengths,
                                    const at::Tensor& target_lengths, const at::Tensor& loss,
                                    const at::Tensor& log_alpha, int64_t blank,
                                    bool zero_infinity) {
  return at::_ctc_loss_backward(grad, log_probs, targets, on_host(input_lengths),
                                on_host(target_lengths), loss, log_alpha, blank, zero_infinity);
}

// Tensors of several devices are copied one by one, as on PyTorch's other devices.
void neuron_foreach_copy_(at::TensorList self, at::TensorList source, bool non_blocking) {
  TORCH_CHECK(!self.empty(), "Tensor list must have at least one tensor.");
  TORCH_CHECK(self.size() == source.size(),
              "Tensor lists must have the same number of tensors, got ", self.size(), " and ",
              source.size());
  const auto elsewhere = [&](const at::Tensor& tensor) {
    return tensor.device() != self[0].device();
  };
  if (!self[0].is_privateuseone() || std::any_of(self.begin(), self.end(), elsewhere) ||
      std::any_of(source.begin(), source.end(), elsewhere)) {
    for (size_t i = 0; i < self.size(); ++i) self[i].copy_(source[i], non_blocking);
    return;
  }
  static Callable& copy = overload("aten::_foreach_copy_");
  std::vector<c10::IValue> results;
  const c10::IValue arguments[] = {self, source, non_blocking};
  copy.call(arguments, results);
}

// What torch.nn.MultiheadAttention and TransformerEncoderLayer call in evaluation.

std::tuple<at::Tensor, at::Tensor> neuron_multi_head_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t embed_dim,
    int64_t num_head, const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
    const at::Tensor& proj_weight, const at::Tensor& proj_bias,
    const std::optional<at::Tensor>& mask, bool need_weights, bool average_attn_weights,
    std::optional<int64_t> mask_type) {
  const int64_t width = embed_dim;
  TORCH_CHECK(!mask || !mask->defined() || mask_type.has_value(),
              "If mask is provided, mask_type must be specified");
  TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
  TORCH_CHECK(query.size(2) == width, "passed-in embed_dim ", width,
              " didn't match last dim of query ", query.size(2));
  TORCH_CHECK(key.dim() == 3, "expected 3-D `key`, got ", key.dim(), "-D tensor");
  TORCH_CHECK(value.dim() == 3, "expected 3-D `value`, got ", value.dim(), "-D tensor");
  TORCH_CHECK(qkv_weight.dim() == 2, "expected 2-D `qkv_weight`, got ", qkv_weight.dim(),
              "-D tensor");
  TORCH_CHECK(width * 3 == qkv_weight.size(0),
              "expected `qkv_weight` first dim to be 3x embed_dim");
  TORCH_CHECK(width == qkv_weight.size(1), "expected `qkv_weight` second dim to be embed_Dim");
  TORCH_CHECK(qkv_bias.dim() == 1, "expected 1-D `qkv_bias`, got ", qkv_bias.dim(), "-D tensor");
  TORCH_CHECK(qkv_bias.size(0) == 3 * width,
              "expected `qkv_bias` first dim and first dim of query "
              "to be equal");
  TORCH_CHECK(width % num_head == 0, "`embed_dim` must divide evenly by `num_heads`");

  at::Tensor q, k, v;
  if (key.is_same(query) && value.is_same(query)) {
    std::tie(q, k, v) =
        at::_transform_bias_rescale_qkv(at::linear(query, qkv_weight), qkv_bias, num_head);
  } else {
    const int64_t head = width / num_head;
    const std::vector<at::Tensor> weights = qkv_weight.chunk(3, 0), biases = qkv_bias.chunk(3, 0);
    const auto project = [&](const at::Tensor& x, size_t i) {
      return at::linear(x, weights[i], biases[i])
          .view({x.size(0), x.size(1), num_head, head})
          .transpose(1, 2);
    };
    q = project(query, 0) / std::sqrt(static_cast<double>(head));
    k = project(key, 1);
    v = project(value, 2);
  }
  at::Tensor weights = at::matmul(q, k.transpose(-2, -1));
  if (mask && mask->defined()) {
    const at::Tensor hidden = mask->scalar_type() == at::kBool ? *mask : mask->to(at::kBool);
    weights = at::_masked_softmax(weights, hidden, weights.dim() - 1, mask_type);
  } else {
    weights = at::softmax(weights, -1);
  }
  const at::Tensor mixed =
      at::matmul(weights, v).transpose(1, 2).reshape({query.size(0), query.size(1), width});
  at::Tensor result = at::linear(mixed, proj_weight, proj_bias);
  if (!need_weights) return {result, at::Tensor()};
  if (average_attn_weights) weights = weights.sum(1) / num_head;
  return {result, weights};
}

at::Tensor neuron_transformer_encoder_layer(
    const at::Tensor& src, int64_t embed_dim, int64_t num_heads, const at::Tensor& qkv_weight,
    const at::Tensor& qkv_bias, const at::Tensor& proj_weight, const at::Tensor& proj_bias,
    bool use_gelu, bool norm_first, double eps, const at::Tensor& norm_weight_1,
    const at::Tensor& norm_bias_1, const at::Tensor& norm_weight_2, const at::Tensor& norm_bias_2,
    const at::Tensor& ffn_weight_1, const at::Tensor& ffn_bias_1, const at::Tensor& ffn_weight_2,
    const at::Tensor& ffn_bias_2, const std::optional<at::Tensor>& mask,
    std::optional<int64_t> mask_type) {
  const auto norm = [&](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return at::layer_norm(x, {embed_dim}, weight, bias, eps);
  };
  at::Tensor x = norm_first ? norm(src, norm_weight_1, norm_bias_1) : src;
  x = std::get<0>(neuron_multi_head_attention(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias,
                                              proj_weight, proj_bias, mask, false, true,
                                              mask_type));
  x = x + src;
  if (!norm_first) x = norm(x, norm_weight_1, norm_bias_1);
  const at::Tensor before = x;
  if (norm_first) x = norm(x, norm_weight_2, norm_bias_2);
  x = at::linear(x, ffn_weight_1, ffn_bias_1);
  x = at::linear(use_gelu ? at::gelu(x) : at::relu(x), ffn_weight_2, ffn_bias_2) + before;
  return norm_first ? x : norm(x, norm_weight_2, norm_bias_2);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("tril_indices", TORCH_FN(neuron_tril_indices));
  m.impl("triu_indices", TORCH_FN(neuron_triu_indices));
  m.impl("is_set_to", TORCH_FN(neuron_is_set_to));
  m.impl("bernoulli.out", TORCH_FN(neuron_bernoulli_out));
  m.impl("_foreach_copy_", TORCH_FN(neuron_foreach_copy_));
  m.impl("_cummax_helper", TORCH_FN(neuron_cummax_helper));
  m.impl("_cummin_helper", TORCH_FN(neuron_cummin_helper));
  m.impl("repeat_interleave.Tensor", TORCH_FN(neuron_repeat_interleave));
  m.impl("_embedding_bag_backward", TORCH_FN(neuron_embedding_bag_backward));
  m.impl("_slow_conv2d_backward.grad_input", TORCH_FN(neuron_slow_conv2d_backward_out));
  m.impl("_ctc_loss.Tensor", TORCH_FN(neuron_ctc_loss));
  m.impl("_ctc_loss_backward.Tensor", TORCH_FN(neuron_ctc_loss_backward));
  m.impl("_native_multi_head_attention", TORCH_FN(neuron_multi_head_attention));
  m.impl("_transformer_encoder_layer_fwd", TORCH_FN(neuron_transformer_encoder_layer));
}

}  // namespace
}  // namespace tn::torch_glue
