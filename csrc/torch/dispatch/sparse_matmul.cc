// Matrix products with sparse COO operands: rows of the dense side are gathered by column, scaled,
// and added up by row. Half-width floats are summed in float32.

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "torch/dispatch/sparse.h"

namespace tn::torch_glue {
namespace {

c10::ScalarType sum_type(c10::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

// One row of the result's terms for each entry: (nnz, p), in the type of sums.
at::Tensor terms(const at::Tensor& columns, const at::Tensor& values, const at::Tensor& dense) {
  const c10::ScalarType type = sum_type(values.scalar_type());
  return dense.index_select(0, columns).to(type) * values.to(type).unsqueeze(1);
}

// (m, k) sparse times (k, p) dense as dense (m, p), in the type of sums.
at::Tensor times(const at::Tensor& rows, const at::Tensor& columns, const at::Tensor& values,
                 const at::Tensor& dense, int64_t m) {
  const at::Tensor added = terms(columns, values, dense);
  return at::zeros({m, dense.size(1)}, added.options()).index_add_(0, rows, added);
}

void check_operands(const at::Tensor& sparse, const at::Tensor& dense, const char* name) {
  TORCH_CHECK(sparse.is_sparse(), name, ": expected 'mat1' to be sparse, but got layout ",
              sparse.layout());
  TORCH_CHECK(!dense.is_sparse(), name, ": expected 'mat2' to be dense, but got layout ",
              dense.layout());
  TORCH_CHECK(sparse.sparse_dim() == 2, name, ": matrices expected, got ", sparse.sparse_dim(),
              "D tensor");
  TORCH_CHECK(sparse.dense_dim() == 0, name, ": scalar values expected, got ", sparse.dense_dim(),
              "D values");
  TORCH_CHECK(dense.dim() == 2, name, ": matrices expected, got ", dense.dim(), "D tensor");
  TORCH_CHECK(sparse.size(1) == dense.size(0), name, ": Argument #3 (dense): Expected dim 0 size ",
              sparse.size(1), ", got ", dense.size(0));
  TORCH_CHECK(sparse.scalar_type() == dense.scalar_type(), name,
              ": expected operands of one dtype, got ", sparse.scalar_type(), " and ",
              dense.scalar_type());
}

at::Tensor neuron_addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                        const at::Scalar& beta, const at::Scalar& alpha) {
  TORCH_CHECK(!self.is_sparse(), "addmm: expected 'self' to be dense, but got layout ",
              self.layout());
  check_operands(mat1, mat2, "addmm");
  const c10::MaybeOwned<at::Tensor> base =
      at::expand_size(self, {mat1.size(0), mat2.size(1)}, "addmm_out");
  TORCH_CHECK(base->scalar_type() == mat2.scalar_type(),
              "addmm: expected operands of one dtype, "
              "got ",
              base->scalar_type(), " and ", mat2.scalar_type());
  const at::Tensor product = times(mat1._indices().select(0, 0), mat1._indices().select(0, 1),
                                   mat1._values(), mat2, mat1.size(0));
  const at::Tensor scaled = product * alpha;
  // beta = 0 ignores what `self` holds, nan included.
  const bool ignored = beta.toComplexDouble() == c10::complex<double>(0.0);
  return (ignored ? scaled : base->to(scaled.scalar_type()) * beta + scaled).to(mat2.scalar_type());
}

at::Tensor& neuron_addmm_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                             const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  const at::Tensor result = neuron_addmm(self, mat1, mat2, beta, alpha);
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

at::Tensor& neuron_addmm_(at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                          const at::Scalar& beta, const at::Scalar& alpha) {
  return self.copy_(neuron_addmm(self, mat1, mat2, beta, alpha));
}

at::Tensor neuron_bmm(const at::Tensor& self, const at::Tensor& mat2) {
  TORCH_CHECK(self.is_sparse() && !mat2.is_sparse(),
              "bmm_sparse: expected a sparse and a dense tensor, got layouts ", self.layout(),
              " and ", mat2.layout());
  TORCH_CHECK(self.sparse_dim() == 3 && self.dense_dim() == 0,
              "bmm_sparse: Tensor 'self' must have 3 sparse dims and 0 dense dims, but got ",
              self.sparse_dim(), " and ", self.dense_dim());
  TORCH_CHECK(mat2.dim() == 3, "bmm_sparse: Tensor 'mat2' must have 3 dims, but got ", mat2.dim());
  TORCH_CHECK(self.size(0) == mat2.size(0),
              "bmm_sparse: 'self.size(0)' and 'mat2.size(0)' must "
              "match, but got ",
              self.size(0), " and ", mat2.size(0));
  TORCH_CHECK(self.size(2) == mat2.size(1),
              "bmm_sparse: 'self.size(2)' and 'mat2.size(1)' must "
              "match, but got ",
              self.size(2), " and ", mat2.size(1));
  const int64_t b = self.size(0), m = self.size(1), k = self.size(2), p = mat2.size(2);
  const at::Tensor indices = self._indices(), batch = indices.select(0, 0);
  return times(batch * m + indices.select(0, 1), batch * k + indices.select(0, 2), self._values(),
               mat2.reshape({b * k, p}), b * m)
      .to(mat2.scalar_type())
      .view({b, m, p});
}

at::Tensor& neuron_bmm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  const at::Tensor result = neuron_bmm(self, mat2);
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

// Entries of `a` joined with the entries of `b` in the row that their column names.
at::Tensor neuron_sparse_sparse_matmul(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.is_sparse() && other.is_sparse(),
              "_sparse_sparse_matmul: expected two sparse tensors, got layouts ", self.layout(),
              " and ", other.layout());
  for (const at::Tensor* matrix : {&self, &other}) {
    TORCH_CHECK(matrix->sparse_dim() == 2 && matrix->dense_dim() == 0,
                "_sparse_sparse_matmul: matrices of scalars expected, got ", matrix->sparse_dim(),
                " sparse and ", matrix->dense_dim(), " dense dimensions");
  }
  TORCH_CHECK(self.size(1) == other.size(0), "mat1 and mat2 shapes cannot be multiplied (",
              self.size(0), "x", self.size(1), " and ", other.size(0), "x", other.size(1), ")");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "mat1 dtype ", self.scalar_type(),
              " does not match mat2 dtype ", other.scalar_type());
  const at::Tensor a = self.coalesce(), b = other.coalesce();
  const Matches matches =
      find_matches(b._indices().select(0, 0).contiguous(), a._indices().select(0, 1).contiguous());
  const Expansion pairs = expand_runs(matches.starts, matches.counts);
  const c10::ScalarType type = sum_type(a.scalar_type());
  const at::Tensor values = a._values().to(type).index_select(0, pairs.groups) *
                            b._values().to(type).index_select(0, pairs.entries);
  const at::Tensor indices = at::stack({a._indices().select(0, 0).index_select(0, pairs.groups),
                                        b._indices().select(0, 1).index_select(0, pairs.entries)});
  return make_sparse(indices, values, {a.size(0), b.size(1)}, false)
      .coalesce()
      .to(self.scalar_type());
}

at::Tensor neuron_hspmm(const at::Tensor& mat1, const at::Tensor& mat2) {
  check_operands(mat1, mat2, "hspmm");
  const at::Tensor rows = mat1._indices().slice(0, 0, 1);
  return make_sparse(rows, terms(mat1._indices().select(0, 1), mat1._values(), mat2),
                     {mat1.size(0), mat2.size(1)}, false)
      .coalesce()
      .to(mat2.scalar_type());
}

at::Tensor& neuron_hspmm_out(const at::Tensor& mat1, const at::Tensor& mat2, at::Tensor& out) {
  return store_sparse(neuron_hspmm(mat1, mat2), out, "hspmm");
}

at::Tensor& neuron_sspaddmm_out(const at::Tensor& self, const at::Tensor& mat1,
                                const at::Tensor& mat2, const at::Scalar& beta,
                                const at::Scalar& alpha, at::Tensor& out) {
  TORCH_CHECK(self.is_sparse() && self.sparse_dim() == 2 && self.dense_dim() == 0,
              "sspaddmm: expected 'self' to be a sparse matrix of scalars");
  const at::Tensor rows = neuron_hspmm(mat1, mat2);
  TORCH_CHECK(self.sizes() == rows.sizes(), "sspaddmm: Argument #1: Expected size ", rows.sizes(),
              ", got ", self.sizes());
  const int64_t nnz = rows._nnz(), p = rows.size(1);
  const at::Tensor columns = at::arange(p, rows._indices().options()).expand({nnz, p});
  const at::Tensor indices =
      at::stack({rows._indices().select(0, 0).unsqueeze(1).expand({nnz, p}).reshape({-1}),
                 columns.reshape({-1})});
  const at::Tensor sum = make_sparse(
      at::cat({self._indices(), indices}, 1),
      at::cat({self._values() * beta, rows._values().reshape({-1}) * alpha}), self.sizes(), false);
  return store_sparse(sum, out, "sspaddmm");
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("addmm", TORCH_FN(neuron_addmm));
  m.impl("addmm.out", TORCH_FN(neuron_addmm_out));
  m.impl("addmm_", TORCH_FN(neuron_addmm_));
  m.impl("bmm", TORCH_FN(neuron_bmm));
  m.impl("bmm.out", TORCH_FN(neuron_bmm_out));
  m.impl("_sparse_sparse_matmul", TORCH_FN(neuron_sparse_sparse_matmul));
  m.impl("hspmm", TORCH_FN(neuron_hspmm));
  m.impl("hspmm.out", TORCH_FN(neuron_hspmm_out));
  m.impl("sspaddmm.out", TORCH_FN(neuron_sspaddmm_out));
}

}  // namespace
}  // namespace tn::torch_glue
