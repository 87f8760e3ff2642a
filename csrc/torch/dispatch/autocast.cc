// Autocast for the device: PyTorch's own lists of operators, with PyTorch's policies.

#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace tn::torch_glue {
namespace {

using namespace at::autocast;  // NOLINT: the macros below name its members
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;

// As on CUDA: float16 probabilities of 0 and 1 would give infinite losses.
Tensor refuse_binary_cross_entropy(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                   int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
              "autocast. Use torch.nn.functional.binary_cross_entropy_with_logits or "
              "torch.nn.BCEWithLogitsLoss, which contain the sigmoid and are safe; or compute the "
              "loss in float32 within torch.autocast(\"neuron\", enabled=False).");
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TN_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(TN_LOWER_PRECISION)
#undef TN_LOWER_PRECISION
#define TN_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(TN_FP32)
#undef TN_FP32
#define TN_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(TN_FP32_SET_OPT_DTYPE)
#undef TN_FP32_SET_OPT_DTYPE
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define TN_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(TN_PROMOTE)
#undef TN_PROMOTE
  m.impl("binary_cross_entropy", TORCH_FN(refuse_binary_cross_entropy));
}

}  // namespace
}  // namespace tn::torch_glue
