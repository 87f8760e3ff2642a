#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <optional>

#include "host/kernels.h"

namespace tn::host {

// Query (B, H, L, D), key (B, H, S, D), value (B, H, S, D) and the scale, a float64, to the output
// (B, H, L, D) and the logarithm of each row's sum (B, H, L) in float32.
void attention(const Call& call) {
  const auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      call.arg(0), call.arg(1), call.arg(2), /*dropout_p=*/0.0, call.integer("causal") != 0,
      /*attn_mask=*/std::nullopt, call.arg(3).item<double>());
  call.give(0, output);
  call.give(1, logsumexp);
}

// Gradient of the output, query, key, value, output, logsumexp and the scale to the gradients of
// query, key and value.
void attention_backward(const Call& call) {
  const auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      call.arg(0), call.arg(1), call.arg(2), call.arg(3), call.arg(4), call.arg(5),
      /*dropout_p=*/0.0, call.integer("causal") != 0, /*attn_mask=*/std::nullopt,
      call.arg(6).item<double>());
  call.give(0, query);
  call.give(1, key);
  call.give(2, value);
}

}  // namespace tn::host
