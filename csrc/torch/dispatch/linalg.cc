// Determinants and solutions from LU factors. As on CPU the factors of a determinant are those of
// the transposed matrix when that is real and contiguous, and those of a solution never are: the
// backward formulas count on both. Least squares from QR or singular values. And what raises by
// itself where a matrix is singular.

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
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

// A right-hand side of vectors, one for each matrix.
bool is_vectors(const at::Tensor& matrix, const at::Tensor& right) {
  return right.dim() == 1 ||
         (matrix.dim() - 1 == right.dim() && right.sizes() == matrix.sizes().slice(0, right.dim()));
}

Four neuron_solve(const at::Tensor& matrix, const at::Tensor& right, bool left, bool check_errors) {
  const at::Tensor shape =
      std::get<0>(at::_linalg_solve_ex(to_meta(matrix), to_meta(right), left, false));
  const bool vectors = is_vectors(matrix, right);
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

at::Tensor& neuron_eigvals_out(const at::Tensor& matrix, at::Tensor& out) {
  into(out, at::_linalg_eigvals(matrix));
  return out;
}

struct LeastSquares {
  at::Tensor solution, residuals, rank, singular_values;
};

at::Tensor squares(const at::Tensor& x) { return x.abs().square().sum(-2); }

// LAPACK's gels: A of full rank, or an error.
LeastSquares solve_full_rank(const at::Tensor& a, const at::Tensor& b) {
  const bool tall = a.size(-2) >= a.size(-1);
  const auto [q, r] = at::linalg_qr(tall ? a : a.mH(), "reduced");
  const at::Tensor zero = r.diagonal(0, -2, -1).eq(0);
  // All zero is solved by zeros.
  const at::Tensor nothing = a.eq(0).all(-1).all(-1);
  const at::Tensor info = (zero.to(at::kInt).argmax(-1) + 1) * zero.any(-1) * nothing.logical_not();
  at::_linalg_check_errors(info.to(at::kInt), "torch.linalg.lstsq", a.dim() == 2);
  LeastSquares result;
  at::Tensor x;
  if (tall) {
    const at::Tensor y = at::matmul(q.mH(), b);
    x = at::linalg_solve_triangular(r, y, /*upper=*/true);
    if (a.size(-2) > a.size(-1)) result.residuals = squares(b - at::matmul(q, y));
  } else {
    x = at::matmul(q, at::linalg_solve_triangular(r.mH(), b, /*upper=*/false));
  }
  result.solution = at::where(nothing.unsqueeze(-1).unsqueeze(-1), at::zeros({}, x.options()), x);
  return result;
}

// The solution of least norm, with the singular values below `rcond` times the largest as zeros.
// CPU's gelsy finds the rank by a pivoted QR, which agrees where the rank is clear.
LeastSquares solve_by_singular_values(const at::Tensor& a, const at::Tensor& b, double rcond,
                                      bool values) {
  const auto [u, s, vh] = at::linalg_svd(a, /*full_matrices=*/false);
  const at::Tensor counts = s.gt(s.narrow(-1, 0, 1) * rcond);
  const at::Tensor inverse = at::where(counts, s.reciprocal(), at::zeros({}, s.options()));
  LeastSquares result;
  result.solution = at::matmul(vh.mH(), inverse.unsqueeze(-1) * at::matmul(u.mH(), b));
  result.rank = counts.sum(-1);
  if (!values) return result;
  result.singular_values = s;
  const int64_t m = a.size(-2), n = a.size(-1);
  if (m > n && result.rank.eq(n).all().item<bool>()) {
    result.residuals = squares(b - at::matmul(a, result.solution));
  }
  return result;
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&> neuron_lstsq_out(
    const at::Tensor& matrix, const at::Tensor& right, std::optional<double> rcond,
    std::optional<std::string_view> driver, at::Tensor& solution, at::Tensor& residuals,
    at::Tensor& rank, at::Tensor& singular_values) {
  constexpr const char* kName = "torch.linalg.lstsq: ";
  TORCH_CHECK(matrix.dim() >= 2, kName, "input must have at least 2 dimensions.");
  TORCH_CHECK(right.dim() >= 1, kName, "other must have at least 1 dimension.");
  TORCH_CHECK(matrix.scalar_type() == right.scalar_type(), kName,
              "Expected input and other to have the same dtype, but got input's dtype ",
              matrix.scalar_type(), " and other's dtype ", right.scalar_type());
  TORCH_CHECK(at::isFloatingType(matrix.scalar_type()) || matrix.is_complex(), kName,
              "Expected a floating point or complex tensor as input. Got ", matrix.scalar_type());
  const int64_t more = matrix.dim() - right.dim();
  TORCH_CHECK(0 <= more && more <= 1, kName,
              "input.dim() must be greater or equal to other.dim() and (input.dim() - other.dim()) "
              "<= 1");
  const bool vectors = is_vectors(matrix, right);
  at::Tensor b = vectors ? right.unsqueeze(-1) : right;
  TORCH_CHECK(matrix.size(-2) == b.size(-2), kName,
              vectors ? "input.size(-2) should match other.size(-1)"
                      : "input.size(-2) should match other.size(-2)");
  const std::string way(driver.value_or("gelsy"));
  TORCH_CHECK(way == "gels" || way == "gelsy" || way == "gelsd" || way == "gelss", kName,
              "parameter `driver` should be one of (gels, gelsy, gelsd, gelss)");

  const int64_t m = matrix.size(-2), n = matrix.size(-1), k = b.size(-1);
  auto batch =
      at::infer_size(matrix.sizes().slice(0, matrix.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  const auto shaped = [&](int64_t rows, int64_t columns) {
    auto sizes = batch;
    sizes.push_back(rows);
    sizes.push_back(columns);
    return sizes;
  };
  const at::Tensor a = matrix.expand(shaped(m, n));
  b = b.expand(shaped(m, k));
  const auto real = matrix.options().dtype(c10::toRealValueType(matrix.scalar_type()));
  LeastSquares result;
  if (a.numel() == 0 || b.numel() == 0) {
    result.solution = at::zeros(shaped(n, k), matrix.options());
    if (way != "gels") result.rank = at::zeros(batch, real.dtype(at::kLong));
    if (way == "gelsd" || way == "gelss") {
      auto sizes = batch;
      sizes.push_back(std::min(m, n));
      result.singular_values = at::zeros(sizes, real);
    }
  } else if (way == "gels") {
    result = solve_full_rank(a, b);
  } else {
    const double epsilon = real.dtype() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                       : std::numeric_limits<float>::epsilon();
    const double bound = rcond.value_or(epsilon * static_cast<double>(std::max(m, n)));
    result = solve_by_singular_values(a, b, bound, way != "gelsy");
  }
  const auto or_empty = [](const at::Tensor& x, const at::TensorOptions& options) {
    return x.defined() ? x : at::empty({0}, options);
  };
  into(solution, vectors ? result.solution.squeeze(-1) : result.solution);
  into(residuals, or_empty(result.residuals, real));
  into(rank, or_empty(result.rank, real.dtype(at::kLong)));
  into(singular_values, or_empty(result.singular_values, real));
  return {solution, residuals, rank, singular_values};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linalg_lstsq.out", TORCH_FN(neuron_lstsq_out));
  m.impl("_linalg_det", TORCH_FN(neuron_det));
  m.impl("_linalg_det.result", TORCH_FN(neuron_det_out));
  m.impl("_linalg_slogdet", TORCH_FN(neuron_slogdet));
  m.impl("_linalg_slogdet.sign", TORCH_FN(neuron_slogdet_out));
  m.impl("_linalg_solve_ex", TORCH_FN(neuron_solve));
  m.impl("_linalg_solve_ex.result", TORCH_FN(neuron_solve_out));
  m.impl("cholesky", TORCH_FN(neuron_cholesky));
  m.impl("cholesky.out", TORCH_FN(neuron_cholesky_out));
  m.impl("linalg_eigvals.out", TORCH_FN(neuron_eigvals_out));
}

}  // namespace
}  // namespace tn::torch_glue
