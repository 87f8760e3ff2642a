// Compressed sparse tensors (CSR, CSC, BSR, BSC): made, taken apart, converted, and multiplied by
// way of COO. Everything else raises that there is no kernel.

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_to_sparse_bsc_native.h>
#include <ATen/ops/_to_sparse_bsr_native.h>
#include <ATen/ops/_to_sparse_csc_native.h>
#include <ATen/ops/_to_sparse_csr_native.h>

#include "torch/dispatch/borrowed.h"

namespace tn::torch_glue {
namespace {

constexpr const char* kDeviceGeneric[] = {
    "empty.memory_format", "empty_like", "clone", "copy_", "resize_", "resize_as_sparse_", "zero_",
    "sparse_dim", "dense_dim", "_nnz", "values", "crow_indices", "col_indices", "ccol_indices",
    "row_indices", "_to_dense", "_to_sparse", "_to_sparse.sparse_dim",
    // these end in addmm.out, add.out and mul.out
    "mm", "mm.out", "addmm", "add.Tensor", "add_.Tensor", "mul.Tensor", "mul_.Tensor", "mul.out",
    "mul.Scalar", "mul_.Scalar", "abs", "neg", "relu", "sin", "tanh", "sqrt", "sum"};

at::Tensor product(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                   const at::Scalar& beta, const at::Scalar& alpha) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.layout() == c10::kStrided &&
          (mat1.layout() == c10::kStrided) != (mat2.layout() == c10::kStrided),
      "addmm: expected one compressed sparse and two dense operands on neuron, got layouts ",
      self.layout(), ", ", mat1.layout(), " and ", mat2.layout(), ". Convert with to_sparse().");
  if (mat2.layout() == c10::kStrided) return at::addmm(self, mat1.to_sparse(), mat2, beta, alpha);
  const auto base = at::expand_size(self, {mat1.size(0), mat2.size(1)}, "addmm_out");
  return at::addmm(base->t(), mat2.to_sparse().t(), mat1.t(), beta, alpha).t();
}

at::Tensor& neuron_addmm_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                             const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  const at::Tensor result = product(self, mat1, mat2, beta, alpha);
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

at::Tensor& neuron_addmv_out(const at::Tensor& self, const at::Tensor& mat, const at::Tensor& vec,
                             const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  TORCH_CHECK(vec.dim() == 1, "addmv: expected a vector, got ", vec.dim(), " dimensions");
  const auto base = at::expand_size(self, {mat.size(0)}, "addmv_out");
  const at::Tensor result =
      product(base->unsqueeze(1), mat, vec.unsqueeze(1), beta, alpha).squeeze(1);
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

at::Tensor& neuron_add_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha,
                           at::Tensor& out) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.layout() == c10::kStrided && out.layout() == c10::kStrided,
                              "add: expected dense + compressed sparse on neuron, got layouts ",
                              self.layout(), " and ", other.layout(),
                              ". Convert with to_sparse().");
  return at::add_out(out, self, other.to_sparse(), alpha);
}

// Between layouts by way of COO: PyTorch's own direct ways read memory.
at::Tensor to_csr(const at::Tensor& self, std::optional<int64_t> dense_dim) {
  return self.layout() == c10::kSparseCsr ? self.clone()
                                          : self.to_sparse().to_sparse_csr(dense_dim);
}

at::Tensor to_csc(const at::Tensor& self, std::optional<int64_t> dense_dim) {
  return self.layout() == c10::kSparseCsc ? self.clone()
                                          : self.to_sparse().to_sparse_csc(dense_dim);
}

at::Tensor to_bsr(const at::Tensor& self, c10::IntArrayRef blocksize,
                  std::optional<int64_t> dense_dim) {
  if (self.layout() == c10::kSparseCsr) {
    return at::native::sparse_compressed_to_sparse_bsr(self, blocksize, dense_dim);
  }
  return to_csr(self, dense_dim).to_sparse_bsr(blocksize, dense_dim);
}

at::Tensor to_bsc(const at::Tensor& self, c10::IntArrayRef blocksize,
                  std::optional<int64_t> dense_dim) {
  if (self.layout() == c10::kSparseCsc) {
    return at::native::sparse_compressed_to_sparse_bsc(self, blocksize, dense_dim);
  }
  return to_csc(self, dense_dim).to_sparse_bsc(blocksize, dense_dim);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  borrow(m, c10::DispatchKey::SparseCsrCPU, kDeviceGeneric);
  m.impl("add.out", TORCH_FN(neuron_add_out));
  m.impl("addmv.out", TORCH_FN(neuron_addmv_out));
  m.impl("_to_sparse_csr", TORCH_FN(to_csr));
  m.impl("_to_sparse_csc", TORCH_FN(to_csc));
  m.impl("_to_sparse_bsr", TORCH_FN(to_bsr));
  m.impl("_to_sparse_bsc", TORCH_FN(to_bsc));
  m.impl("addmm.out", TORCH_FN(neuron_addmm_out));
}

constexpr const char* kFromCoo[] = {"_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr",
                                    "_to_sparse_bsc"};

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) { borrow(m, c10::DispatchKey::SparseCPU, kFromCoo); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_to_sparse_csr", TORCH_FN(at::native::dense_to_sparse_csr));
  m.impl("_to_sparse_csc", TORCH_FN(at::native::dense_to_sparse_csc));
  m.impl("_to_sparse_bsr", TORCH_FN(at::native::dense_to_sparse_bsr));
  m.impl("_to_sparse_bsc", TORCH_FN(at::native::dense_to_sparse_bsc));
}

}  // namespace
}  // namespace tn::torch_glue
