#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include <array>
#include <optional>

#include "host/kernels.h"

namespace tn::host {

// Input, weight and, if there are three operands, bias, as aten::convolution takes them.
void convolution(const Call& call) {
  std::optional<at::Tensor> bias;
  if (call.num_args() == 3) bias = call.arg(2);
  call.give(0, at::convolution(call.arg(0), call.arg(1), bias, call.integers("stride"),
                               call.integers("padding"), call.integers("dilation"),
                               call.integer("transposed") != 0, call.integers("output_padding"),
                               call.integer("groups")));
}

// Gradient of the result, input and weight; gives the gradients of input and weight, in this order,
// as far as the two numbers of `mask` ask for them.
void convolution_backward(const Call& call) {
  const std::vector<int64_t> mask = call.integers("mask");
  TORCH_CHECK(mask.size() == 2, "expected a mask of 2 numbers, got ", mask.size());
  const auto [grad_input, grad_weight, grad_bias] = at::convolution_backward(
      call.arg(0), call.arg(1), call.arg(2), /*bias_sizes=*/std::nullopt, call.integers("stride"),
      call.integers("padding"), call.integers("dilation"), call.integer("transposed") != 0,
      call.integers("output_padding"), call.integer("groups"),
      std::array<bool, 3>{mask[0] != 0, mask[1] != 0, false});
  int64_t next = 0;
  if (mask[0] != 0) call.give(next++, grad_input);
  if (mask[1] != 0) call.give(next, grad_weight);
}

}  // namespace tn::host
