// Which of PyTorch's ways torch.nn.functional.scaled_dot_product_attention takes on the device: the
// fused operator (one program, its own backward), or PyTorch's composition of simpler operators.

#include "torch/dispatch/attention.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include <atomic>
#include <optional>

namespace tn::torch_glue {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// The fused operator has a first derivative and no batching rule. What may want more (forward-mode
// tangents, torch.func's transforms, which nest) gets the composition.
bool wants_transforms(const Tensor& x) {
  const c10::DispatchKeySet keys = x.key_set();
  return keys.has(c10::DispatchKey::FuncTorchBatched) ||
         keys.has(c10::DispatchKey::FuncTorchGradWrapper) || x._fw_grad(0).defined();
}

bool same(const c10::SymInt& a, const c10::SymInt& b) { return TORCH_GUARD_OR_FALSE(a.sym_eq(b)); }

// (B, H, L, E) queries, (B, Hkv, S, E) keys and (B, Hkv, S, Ev) values of one floating dtype, no
// dimension broadcast; a mask that broadcasts to (B, H, L, S).
bool fused_takes(const Tensor& query, const Tensor& key, const Tensor& value,
                 const OptionalTensor& mask, bool enable_gqa) {
  const auto type = query.scalar_type();
  const bool plain = !query.is_nested() && !key.is_nested() && !value.is_nested() &&
                     query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
                     at::isFloatingType(type) && key.scalar_type() == type &&
                     value.scalar_type() == type;
  if (!plain || wants_transforms(query) || wants_transforms(key) || wants_transforms(value)) {
    return false;
  }
  if (mask && mask->defined() && (mask->dim() > 4 || wants_transforms(*mask))) return false;
  const auto q = query.sym_sizes(), k = key.sym_sizes(), v = value.sym_sizes();
  const bool heads = same(k[1], v[1]) &&
                     (same(q[1], k[1]) ||
                      (enable_gqa && TORCH_GUARD_OR_FALSE(k[1].sym_gt(0)) && same(q[1] % k[1], 0)));
  return heads && same(q[0], k[0]) && same(q[0], v[0]) && same(q[3], k[3]) && same(k[2], v[2]);
}

// Where the composition costs less (decision on attention): its backward reads the weights that the
// fused one computes again, and its dropout mask is drawn once. That outweighs the fewer launches
// of the fused operator once the weights are many, and at once in a traced graph, which is one
// launch whatever it holds.
constexpr int64_t kFewWeights = 256 * 256;  // a head, L x S

std::atomic<bool> host_attention{false};
// As lowering/rules/attention.py has it: what the host's kernels take, and where they gain.
constexpr int64_t kManyScores = 512 * 512;

bool host_gains(const Tensor& query, const Tensor& key, const Tensor& value,
                const OptionalTensor& mask) {
  if (!host_attention.load(std::memory_order_relaxed) || (mask && mask->defined())) return false;
  if (query.scalar_type() != at::kFloat && query.scalar_type() != at::kBFloat16) return false;
  const c10::SymInt scores = query.sym_size(2) * key.sym_size(2);
  return same(query.sym_size(3), value.sym_size(3)) &&
         TORCH_GUARD_OR_FALSE(scores.sym_ge(kManyScores));
}

bool costs_less(const Tensor& query, const Tensor& key, const Tensor& value,
                const OptionalTensor& mask, double dropout_p) {
  if (dropout_p > 0) return false;
  if (host_gains(query, key, value, mask)) return true;
  const bool trained = at::GradMode::is_enabled() &&
                       (query.requires_grad() || key.requires_grad() || value.requires_grad() ||
                        (mask && mask->defined() && mask->requires_grad()));
  if (!trained) return true;
  if (query.key_set().has(c10::DispatchKey::Python)) return false;
  return query.size(2) * key.size(2) <= kFewWeights;
}

// The names are those of torch.nn.attention.sdpa_kernel: a program that asks for any of CUDA's
// fused kernels gets the device's own.
int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value,
               const OptionalTensor& mask, double dropout_p, bool /*is_causal*/,
               std::optional<double> /*scale*/, bool enable_gqa) {
  const at::Context& context = at::globalContext();
  const bool math = context.userEnabledMathSDP();
  const bool fused = context.userEnabledOverrideableSDP() || context.userEnabledFlashSDP() ||
                     context.userEnabledMemEfficientSDP() || context.userEnabledCuDNNSDP();
  if (fused && fused_takes(query, key, value, mask, enable_gqa) &&
      (!math || costs_less(query, key, value, mask, dropout_p))) {
    return static_cast<int64_t>(at::SDPBackend::overrideable);
  }
  TORCH_CHECK(
      math,
      "No viable backend for scaled_dot_product_attention was found. The fused one takes "
      "query, key and value of four dimensions and one floating dtype, outside torch.func and "
      "forward-mode AD, and SDPBackend.MATH is turned off.");
  return static_cast<int64_t>(at::SDPBackend::math);
}

}  // namespace

void set_host_attention(bool available) {
  host_attention.store(available, std::memory_order_relaxed);
}

namespace {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_fused_sdp_choice", TORCH_FN(choose)); }

}  // namespace
}  // namespace tn::torch_glue

namespace at::native {
namespace {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &tn::torch_glue::choose)
}  // namespace
}  // namespace at::native
