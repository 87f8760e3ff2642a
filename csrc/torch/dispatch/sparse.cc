// Sparse COO tensors: indices and values are dense tensors of the device, and every kernel is a few
// dense operators over them.
//
// Most of PyTorch's own kernels for sparse tensors are written that way and are borrowed here.
// Those that read memory are replaced in sparse_math.cc and sparse_matmul.cc. What is left runs on
// the CPU and is counted (decision D8).

#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_to_sparse_native.h>
#include <ATen/ops/sspaddmm_native.h>

#include <optional>
#include <vector>

#include "torch/dispatch/borrowed.h"
#include "torch/dispatch/overloads.h"

namespace tn::torch_glue {
namespace {

// Registered for SparseCPU and SparseCUDA alike: written in terms of dense operators.
constexpr const char* kDeviceGeneric[] = {
    // construction and parts
    "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors",
    "empty.memory_format", "empty_like", "zeros.out", "_dimI", "_dimV", "sparse_dim", "dense_dim",
    "_nnz", "is_coalesced", "_coalesced_", "_indices", "_values", "indices", "values",
    // sizes, copies, conversion
    "sparse_resize_", "sparse_resize_and_clear_", "resize_as_sparse_", "copy_sparse_to_sparse_",
    "copy_", "clone", "zero_", "_to_dense", "_to_sparse", "_to_sparse.sparse_dim", "cat", "permute",
    "unsqueeze", "narrow_copy", "_sparse_broadcast_to", "view_as_real", "view_as_complex",
    // arithmetic; these end in add.out, mul.out, addmm and _sparse_sparse_matmul
    "add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "sub.out", "mul.Tensor",
    "mul_.Tensor", "div.Tensor", "div_.Tensor", "div.out", "div.Tensor_mode", "div_.Tensor_mode",
    "div.out_mode", "floor_divide", "floor_divide_.Tensor", "floor_divide.out", "pow.Tensor_Scalar",
    "pow.Tensor_Scalar_out", "mm", "mm.out", "mv", "sum", "sum.dim_IntList", "any", "native_norm",
    "native_norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype",
    "threshold_backward", "threshold_backward.grad_input",
    // functions of one element that keep zero
    "abs", "abs_", "abs.out", "asin", "asin_", "asin.out", "asinh", "asinh_", "asinh.out", "atan",
    "atan_", "atan.out", "atanh", "atanh_", "atanh.out", "ceil", "ceil_", "ceil.out",
    "conj_physical.out", "deg2rad", "deg2rad_", "deg2rad.out", "erf", "erf_", "erf.out", "erfinv",
    "erfinv_", "erfinv.out", "expm1", "expm1_", "expm1.out", "floor", "floor_", "floor.out", "frac",
    "frac_", "frac.out", "isinf", "isnan", "isneginf", "isneginf.out", "isposinf", "isposinf.out",
    "log1p", "log1p_", "log1p.out", "nan_to_num", "nan_to_num_", "nan_to_num.out", "neg", "neg_",
    "neg.out", "rad2deg", "rad2deg_", "rad2deg.out", "relu", "relu_", "round", "round_",
    "round.out", "sgn", "sgn_", "sgn.out", "sign", "sign_", "sign.out", "signbit", "signbit.out",
    "sin", "sin_", "sin.out", "sinh", "sinh_", "sinh.out", "sqrt", "sqrt_", "sqrt.out", "tan",
    "tan_", "tan.out", "tanh", "tanh_", "tanh.out", "trunc", "trunc_", "trunc.out"};

// PyTorch's own fallback knows dense tensors only.
c10::IValue moved(const c10::IValue& value, const c10::Device& device) {
  if (value.isDevice()) return device;
  if (value.isTensor()) {
    return value.toTensor().defined() ? value.toTensor().to(device) : value.toTensor();
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> result;
    for (const at::Tensor& tensor : value.toTensorVector()) result.push_back(tensor.to(device));
    return result;
  }
  return value;
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  record_fallback(op, *stack, c10::DispatchKey::SparseCPU);
  const auto& schema = op.schema();
  const auto count = static_cast<int64_t>(schema.arguments().size());
  const std::vector<c10::IValue> given(stack->end() - count, stack->end());
  std::vector<c10::IValue> arguments;
  std::optional<c10::Device> device;
  for (const c10::IValue& value : given) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_privateuseone()) {
      device = value.toTensor().device();
    }
    arguments.push_back(moved(value, at::kCPU));
  }
  torch::jit::Stack own = arguments;
  op.callBoxed(own);
  for (size_t i = 0; i < given.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite() || !given[i].isTensor()) continue;
    const at::Tensor target = given[i].toTensor(), result = arguments[i].toTensor();
    if (!target.is_sparse()) at::native::resize_output(target, result.sizes());
    target.copy_(result);
    for (c10::IValue& value : own) {
      if (value.isTensor() && value.toTensor().is_same(result)) value = target;
    }
  }
  stack->erase(stack->end() - count, stack->end());
  for (const c10::IValue& value : own) stack->push_back(device ? moved(value, *device) : value);
}

at::Tensor to_sparse(const at::Tensor& self, std::optional<c10::Layout> layout,
                     at::OptionalIntArrayRef blocksize, std::optional<int64_t> dense_dim) {
  return at::native::dense_to_sparse(self, layout, blocksize, dense_dim);
}

at::Tensor to_sparse_dim(const at::Tensor& self, int64_t sparse_dim) {
  return at::native::dense_to_sparse(self, sparse_dim);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  borrow(m, c10::DispatchKey::SparseCPU, kDeviceGeneric);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_to_sparse", TORCH_FN(to_sparse));
  m.impl("_to_sparse.sparse_dim", TORCH_FN(to_sparse_dim));
  m.impl("sspaddmm.out", TORCH_FN(at::native::_sspaddmm_out_only_sparse));
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace
}  // namespace tn::torch_glue
