// Determinants and solutions from LU factors. As on CPU the factors of a determinant are those of
// the transposed matrix when that is real and contiguous, and those of a solution never are: the
// backward formulas count on both. And what raises by itself where a matrix is singular.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include <tuple>

namespace tn::torch_glue {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// For PyTorch's checks of arguments and result shapes, which its meta kernels make.
at::Tensor to_meta(const at::Tensor& x) {
  return at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kMeta));
}

bool factor_transposed(const at::Tensor& matrix) {
  return matrix.is_contiguous() && !matrix.is_complex();
}

struct Factors {
  at::Tensor packed;
  at::Tensor pivots;
  at::Tensor info;
};

Factors factorise(const at::Tensor& matrix) {
  auto [packed, pivots, info] = at::linalg_lu_factor_ex(matrix);
  return {packed, pivots, info};
}

// 1 or -1: the determinant of the row exchanges.
at::Tensor sign_of(const at::Tensor& pivots, at::ScalarType type) {
  const at::Tensor still = at::arange(1, pivots.size(-1) + 1, pivots.options());
  return (1 - 2 * (pivots != still).sum(-1).remainder(2)).to(type);
}

Three neuron_det(const at::Tensor& matrix) {
  at::_linalg_det(to_meta(matrix));
  const Factors factors = factorise(factor_transposed(matrix) ? matrix.mT() : matrix);
  const at::Tensor product = factors.packed.diagonal(0, -2, -1).prod(-1);
  return {product * sign_of(factors.pivots, product.scalar_type()), factors.packed, factors.pivots};
}

Four neuron_slogdet(const at::Tensor& matrix) {
  at::_linalg_slogdet(to_meta(matrix));
  const Factors factors = factorise(factor_transposed(matrix) ? matrix.mT() : matrix);
  const at::Tensor diagonal = factors.packed.diagonal(0, -2, -1);
  const at::Tensor product = diagonal.sgn().prod(-1);
  return {product * sign_of(factors.pivots, product.scalar_type()), diagonal.abs().log().sum(-1),
          factors.packed, factors.pivots};
}

Four neuron_solve(const at::Tensor& matrix, const at::Tensor& right, bool left, bool check_errors) {
  const at::Tensor shape =
      std::get<0>(at::_linalg_solve_ex(to_meta(matrix), to_meta(right), left, false));
  // A right-hand side of vectors, one for each matrix.
  const bool vectors = right.dim() == 1 || (matrix.dim() - 1 == right.dim() &&
                                            right.sizes() == matrix.sizes().slice(0, right.dim()));
  const Factors factors = factorise(matrix);
  at::Tensor result =
      at::linalg_lu_solve(factors.packed, factors.pivots, vectors ? right.unsqueeze(-1) : right,
                          left, /*adjoint=*/false);
  if (vectors) result = result.squeeze(-1);
  TORCH_INTERNAL_ASSERT(result.sizes() == shape.sizes(), "linalg.solve gave ", result.sizes(),
                        ", expected ", shape.sizes());
  if (check_errors)
    at::_linalg_check_errors(factors.info, "torch.linalg.solve_ex", matrix.dim() == 2);
  return {result, factors.packed, factors.pivots, factors.info};
}

void into(at::Tensor& out, const at::Tensor& value) {
  TORCH_CHECK(out.device() == value.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              value.device(), " and ", out.device(), "!");
  TORCH_CHECK(at::canCast(value.scalar_type(), out.scalar_type()), "result type ",
              value.scalar_type(), " can't be cast to the desired output type ", out.scalar_type());
  out.resize_(value.sizes()).copy_(value);
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> neuron_det_out(const at::Tensor& matrix,
                                                                 at::Tensor& result,
                                                                 at::Tensor& packed,
                                                                 at::Tensor& pivots) {
  const auto [a, b, c] = neuron_det(matrix);
  into(result, a);
  into(packed, b);
  into(pivots, c);
  return {result, packed, pivots};
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&> neuron_slogdet_out(
    const at::Tensor& matrix, at::Tensor& sign, at::Tensor& logarithm, at::Tensor& packed,
    at::Tensor& pivots) {
  const auto [a, b, c, d] = neuron_slogdet(matrix);
  into(sign, a);
  into(logarithm, b);
  into(packed, c);
  into(pivots, d);
  return {sign, logarithm, packed, pivots};
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&> neuron_solve_out(
    const at::Tensor& matrix, const at::Tensor& right, bool left, bool check_errors,
    at::Tensor& result, at::Tensor& packed, at::Tensor& pivots, at::Tensor& info) {
  const auto [a, b, c, d] = neuron_solve(matrix, right, left, check_errors);
  into(result, a);
  into(packed, b);
  into(pivots, c);
  into(info, d);
  return {result, packed, pivots, info};
}

at::Tensor neuron_cholesky(const at::Tensor& matrix, bool upper) {
  at::cholesky(to_meta(matrix), upper);
  const auto [factor, info] = at::linalg_cholesky_ex(matrix, upper);
  if (matrix.numel() != 0) at::_linalg_check_errors(info, "cholesky", matrix.dim() == 2);
  return factor;
}

at::Tensor& neuron_cholesky_out(const at::Tensor& matrix, bool upper, at::Tensor& out) {
  into(out, neuron_cholesky(matrix, upper));
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_linalg_det", TORCH_FN(neuron_det));
  m.impl("_linalg_det.result", TORCH_FN(neuron_det_out));
  m.impl("_linalg_slogdet", TORCH_FN(neuron_slogdet));
  m.impl("_linalg_slogdet.sign", TORCH_FN(neuron_slogdet_out));
  m.impl("_linalg_solve_ex", TORCH_FN(neuron_solve));
  m.impl("_linalg_solve_ex.result", TORCH_FN(neuron_solve_out));
  m.impl("cholesky", TORCH_FN(neuron_cholesky));
  m.impl("cholesky.out", TORCH_FN(neuron_cholesky_out));
}

}  // namespace
}  // namespace tn::torch_glue
