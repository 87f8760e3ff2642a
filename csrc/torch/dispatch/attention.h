// Which way scaled_dot_product_attention takes.
#pragma once

namespace tn::torch_glue {

// Whether the fused operator may call the host's kernels (decision D19), which over many positions
// cost less than PyTorch's composition of simpler operators, also in training.
void set_host_attention(bool available);

}  // namespace tn::torch_glue
