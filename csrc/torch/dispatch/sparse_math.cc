// Sparse COO kernels that change the entries: coalesce, sums, products, masks, selections. Where
// the number of entries depends on data it is counted on the device and read (see dynamic.cc).

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/Resize.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/sparse_mask_native.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "torch/dispatch/sparse.h"

namespace tn::torch_glue {

at::Tensor make_sparse(const at::Tensor& indices, const at::Tensor& values, c10::IntArrayRef sizes,
                       bool coalesced) {
  return at::_sparse_coo_tensor_with_dims_and_tensors(
      indices.size(0), values.dim() - 1, sizes, indices, values,
      values.options().layout(c10::kSparse), coalesced);
}

at::Tensor& store_sparse(const at::Tensor& result, at::Tensor& out, const char* operation) {
  TORCH_CHECK(out.is_sparse(), operation, ": the result is sparse, but out= is ", out.layout(),
              ". Pass a sparse tensor.");
  TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), "Can't convert result type ",
              result.scalar_type(), " to output ", out.scalar_type(), " in ", operation);
  const bool coalesced = result.is_coalesced();
  const at::Tensor indices = result._indices();
  const at::Tensor values = result._values().to(out.scalar_type());
  at::sparse::get_sparse_impl(out)->resize_(result.sparse_dim(), result.dense_dim(),
                                            result.sizes());
  at::sparse::alias_into_sparse(out, indices, values);
  out._coalesced_(coalesced);
  return out;
}

at::Tensor entry_positions(const at::Tensor& indices, c10::IntArrayRef sizes) {
  if (indices.size(0) == 0) return at::zeros({indices.size(1)}, indices.options());
  at::Tensor positions = indices.select(0, 0);
  for (int64_t d = 1; d < indices.size(0); ++d) {
    positions = positions * sizes[static_cast<size_t>(d)] + indices.select(0, d);
  }
  return positions;
}

Expansion expand_runs(const at::Tensor& starts, const at::Tensor& counts) {
  const at::Tensor ends = at::cumsum(counts, 0);
  const int64_t total = counts.numel() == 0 ? 0 : ends.select(0, -1).item<int64_t>();
  const at::Tensor groups = at::repeat_interleave(counts, std::optional<int64_t>(total));
  const at::Tensor shift = (starts - ends + counts).index_select(0, groups);
  return {groups, at::arange(total, starts.options()) + shift};
}

Matches find_matches(const at::Tensor& sorted, const at::Tensor& keys) {
  const at::Tensor starts = at::searchsorted(sorted, keys);
  return {starts, at::searchsorted(sorted, keys, /*out_int32=*/false, /*right=*/true) - starts};
}

Lookup look_up(const at::Tensor& sorted, const at::Tensor& keys) {
  const at::Tensor places = at::searchsorted(sorted, keys).clamp_max(sorted.size(0) - 1);
  return {places, sorted.index_select(0, places) == keys};
}

namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

Indices index_rows(const at::Tensor& indices) {
  Indices rows;
  for (int64_t d = 0; d < indices.size(0); ++d) rows.push_back(indices.select(0, d));
  return rows;
}

// One element for each entry, shaped so that it goes with its row of values.
at::Tensor rows_like(at::Tensor entries, const at::Tensor& values) {
  while (entries.dim() < values.dim()) entries = entries.unsqueeze(-1);
  return entries;
}

at::Tensor neuron_coalesce(const at::Tensor& self) {
  const at::Tensor indices = self._indices(), values = self._values();
  const int64_t nnz = self._nnz();
  if (nnz < 2) return make_sparse(indices.clone(), values.clone(), self.sizes(), true);
  const auto [sorted, order] =
      at::sort(entry_positions(indices, self.sizes()), /*stable=*/true, 0, /*descending=*/false);
  const at::Tensor differ = sorted.slice(0, 1) != sorted.slice(0, 0, nnz - 1);
  const at::Tensor marks = at::cat({at::ones({1}, differ.options()), differ});
  const at::Tensor starts = at::nonzero(marks).select(1, 0);
  const int64_t count = starts.size(0);
  at::Tensor merged = values.index_select(0, order);
  if (count != nnz) {
    std::vector<int64_t> sizes = merged.sizes().vec();
    sizes[0] = count;
    merged = at::zeros(sizes, merged.options()).index_add_(0, at::cumsum(marks, 0) - 1, merged);
  }
  return make_sparse(indices.index_select(1, order.index_select(0, starts)), merged, self.sizes(),
                     true);
}

// --- sums ----------------------------------------------------------------------------------------

c10::ScalarType common_type(const at::Tensor& a, const at::Tensor& b) {
  return c10::promoteTypes(a.scalar_type(), b.scalar_type());
}

at::Tensor scaled(const at::Tensor& values, const at::Scalar& alpha) {
  return alpha.isIntegral(/*includeBool=*/true) && alpha.toLong() == 1 ? values : values * alpha;
}

// dense + alpha * sparse, which PyTorch does without broadcasting.
at::Tensor& add_to_dense(const at::Tensor& dense, const at::Tensor& sparse, const at::Scalar& alpha,
                         at::Tensor& out) {
  TORCH_CHECK(!out.is_sparse(), "add: expected 'out' to be dense tensor, but got tensor of layout ",
              out.layout());
  TORCH_CHECK(dense.sizes() == sparse.sizes(),
              "add: expected 'self' and 'other' to have same size, but self has size ",
              dense.sizes(), " while other has size ", sparse.sizes(),
              " (FYI: dense-sparse addition does not currently support broadcasting)");
  const c10::ScalarType type = common_type(dense, sparse);
  TORCH_CHECK(c10::canCast(type, out.scalar_type()), "Can't convert result type ", type,
              " to output ", out.scalar_type(), " in add operation");
  at::native::resize_output(out, dense.sizes());
  if (!out.is_same(dense)) out.copy_(dense);
  if (sparse._nnz() == 0) return out;
  const at::Tensor values = scaled(sparse._values().to(type), alpha);
  at::Tensor sum = out.to(type);  // `out` itself when it has the type
  if (sparse.sparse_dim() == 0) {
    sum.add_(values.sum(0));
  } else {
    sum.index_put_(index_rows(sparse._indices()), values, /*accumulate=*/true);
  }
  if (!sum.is_same(out)) out.copy_(sum);
  return out;
}

at::Tensor& neuron_add_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha,
                           at::Tensor& out) {
  if (!self.is_sparse()) return add_to_dense(self, other, alpha, out);
  TORCH_CHECK(other.is_sparse(),
              "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  TORCH_CHECK(self.sizes() == other.sizes(),
              "add: expected sizes of 'self' and 'other' to match, but ", self.sizes(),
              " != ", other.sizes());
  const c10::ScalarType type = common_type(self, other);
  const at::Tensor added = scaled(other._values().to(type), alpha);
  if (self._nnz() == 0) {
    return store_sparse(
        make_sparse(other._indices().clone(), added.clone(), self.sizes(), other.is_coalesced()),
        out, "add operation");
  }
  const at::Tensor kept = self._values().to(type);
  if (other._nnz() == 0) {
    return store_sparse(
        make_sparse(self._indices().clone(), kept.clone(), self.sizes(), self.is_coalesced()), out,
        "add operation");
  }
  TORCH_CHECK(at::sparse::is_same_density(self, other),
              "add: expected 'self' and 'other' to have same density, but 'self' has ",
              self.sparse_dim(), " sparse dimensions while 'other' has ", other.sparse_dim(),
              " sparse dimensions");
  at::Tensor sum = make_sparse(at::cat({self._indices(), other._indices()}, 1),
                               at::cat({kept, added}), self.sizes(), false);
  // Adding gradients again and again must not grow without end.
  if (sum._nnz() > sum.numel()) sum = sum.coalesce();
  return store_sparse(sum, out, "add operation");
}

at::Tensor neuron_sparse_sum_backward(const at::Tensor& grad, const at::Tensor& input,
                                      c10::IntArrayRef dims) {
  TORCH_CHECK(grad.device() == input.device(),
              "_sparse_sum_backward: expected 'grad_' on the device of 'input_', but got ",
              grad.device(), " and ", input.device());
  const at::Tensor self = input.coalesce();
  const int64_t sparse_dim = self.sparse_dim();
  std::vector<bool> summed(static_cast<size_t>(self.dim()), false);
  for (const int64_t d : dims)
    summed[static_cast<size_t>(c10::maybe_wrap_dim(d, self.dim()))] = true;
  std::vector<int64_t> kept;  // sparse dimensions that the gradient still has
  for (int64_t d = 0; d < sparse_dim; ++d) {
    if (!summed[static_cast<size_t>(d)]) kept.push_back(d);
  }
  const at::Tensor values = self._values();
  at::Tensor rows;  // one row of the gradient's dense part for each entry
  if (kept.empty()) {
    rows = grad.unsqueeze(0);
  } else {
    TORCH_CHECK(grad.is_sparse(),
                "_sparse_sum_backward: expected grad_ Tensor to be sparse, but "
                "got layout ",
                grad.layout());
    const at::Tensor from = grad.coalesce();
    if (from._nnz() == 0) {
      return make_sparse(self._indices().clone(), at::zeros_like(values), self.sizes(), true);
    }
    const at::Tensor wanted =
        self._indices().index_select(0, at::tensor(kept, at::kLong).to(self.device()));
    const Lookup hit = look_up(entry_positions(from._indices(), from.sizes()),
                               entry_positions(wanted, from.sizes()));
    rows = from._values().index_select(0, hit.places);
    rows = rows.masked_fill(rows_like(hit.found.logical_not(), rows), 0);
  }
  for (int64_t d = sparse_dim; d < self.dim(); ++d) {
    if (summed[static_cast<size_t>(d)]) rows = rows.unsqueeze(d - sparse_dim + 1);
  }
  return make_sparse(self._indices().clone(), rows.expand_as(values).clone(), self.sizes(), true);
}

// --- products and masks --------------------------------------------------------------------------

// Entries of `a` that `b` has too; both are coalesced, of the same sizes and sparse dimensions.
struct Common {
  at::Tensor in_a, in_b;
};

Common common_entries(const at::Tensor& a, const at::Tensor& b) {
  const at::TensorOptions options = a._indices().options();
  if (a._nnz() == 0 || b._nnz() == 0) return {at::empty({0}, options), at::empty({0}, options)};
  const Lookup hit =
      look_up(entry_positions(b._indices(), b.sizes()), entry_positions(a._indices(), a.sizes()));
  const at::Tensor in_a = at::nonzero(hit.found).select(1, 0);
  return {in_a, hit.places.index_select(0, in_a)};
}

at::Tensor times_dense(const at::Tensor& self, const at::Tensor& dense) {
  if (dense.dim() == 0) {
    return make_sparse(self._indices().clone(), self._values() * dense, self.sizes(),
                       self.is_coalesced());
  }
  const std::vector<int64_t> sizes = at::infer_size(self.sizes(), dense.sizes());
  const at::Tensor sparse =
      self.sizes() == c10::IntArrayRef(sizes) ? self : at::_sparse_broadcast_to(self, sizes);
  const at::Tensor expanded = dense.expand(sizes);
  const at::Tensor factors = sparse.sparse_dim() == 0
                                 ? expanded.unsqueeze(0)
                                 : expanded.index(index_rows(sparse._indices()));
  return make_sparse(sparse._indices().clone(), sparse._values() * factors, sizes,
                     sparse.is_coalesced());
}

at::Tensor product(const at::Tensor& self, const at::Tensor& other) {
  if (!self.is_sparse()) return product(other, self);
  if (!other.is_sparse()) return times_dense(self, other);
  if (other.dim() == 0) return times_dense(self, other.to_dense());
  if (self.dim() == 0) return times_dense(other, self.to_dense());
  TORCH_CHECK(self.sizes() == other.sizes(),
              "mul: expected 'self' and 'other' to have same sizes,"
              " but ",
              self.sizes(), " != ", other.sizes());
  if (self.sparse_dim() != other.sparse_dim())
    return times_dense(self.coalesce(), other.to_dense());
  const at::Tensor a = self.coalesce(), b = other.coalesce();
  const Common common = common_entries(a, b);
  return make_sparse(
      a._indices().index_select(1, common.in_a),
      a._values().index_select(0, common.in_a) * b._values().index_select(0, common.in_b),
      a.sizes(), true);
}

at::Tensor& neuron_mul_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  return store_sparse(product(self, other), out, "mul operation");
}

void check_mask(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.is_sparse(), "sparse_mask: expected a sparse COO mask, got layout ",
              mask.layout());
  TORCH_CHECK(self.sizes() == mask.sizes(),
              "sparse_mask(): operands have incompatible sizes; self "
              "has size ",
              self.sizes(), " but mask has size ", mask.sizes());
}

// The mask's entries with the values that `self` has there, zero where it has none.
at::Tensor neuron_sparse_mask(const at::Tensor& self, const at::Tensor& mask) {
  if (!self.is_sparse()) return at::native::sparse_mask(self, mask);
  check_mask(self, mask);
  if (self.sparse_dim() != mask.sparse_dim()) return neuron_sparse_mask(self.to_dense(), mask);
  const at::Tensor from = self.coalesce();
  std::vector<int64_t> sizes = from._values().sizes().vec();
  sizes[0] = mask._nnz();
  at::Tensor values;
  if (from._nnz() == 0 || mask._nnz() == 0) {
    values = at::zeros(sizes, from._values().options());
  } else {
    const Lookup hit = look_up(entry_positions(from._indices(), from.sizes()),
                               entry_positions(mask._indices(), mask.sizes()));
    const at::Tensor missing = rows_like(hit.found.logical_not(), from._values());
    values = from._values().index_select(0, hit.places).masked_fill(missing, 0);
  }
  return make_sparse(mask._indices().clone(), values, mask.sizes(), mask.is_coalesced());
}

// The entries of `self` that the mask has, zero elsewhere; or times how often the mask has them.
at::Tensor neuron_sparse_mask_projection(const at::Tensor& self, const at::Tensor& mask,
                                         bool accumulate_matches) {
  check_mask(self, mask);
  const at::Tensor values = self._values();
  const at::Tensor sorted = std::get<0>(at::sort(entry_positions(mask._indices(), mask.sizes())));
  at::Tensor times = find_matches(sorted, entry_positions(self._indices(), self.sizes())).counts;
  if (!accumulate_matches) times = times != 0;
  return make_sparse(self._indices().clone(), values * rows_like(times, values).to(values.dtype()),
                     self.sizes(), self.is_coalesced());
}

at::Tensor neuron_index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  TORCH_CHECK_INDEX(self.dim() != 0, "index_select() cannot be applied to a 0-dim tensor.");
  TORCH_CHECK_INDEX(index.dim() == 1 && index.scalar_type() == at::kLong,
                    "index_select() argument index must be 1-D long-tensor.");
  dim = c10::maybe_wrap_dim(dim, self.dim());
  const int64_t size = self.size(dim), sparse_dim = self.sparse_dim();
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[static_cast<size_t>(dim)] = index.size(0);
  const at::Tensor wrapped = at::where(index < 0, index + size, index);
  if (dim >= sparse_dim) {
    return make_sparse(self._indices().clone(),
                       self._values().index_select(dim - sparse_dim + 1, wrapped), sizes,
                       self.is_coalesced());
  }
  // Through a table of the dimension, so that an index outside of it is found out on the device.
  const at::Tensor wanted = at::arange(size, index.options()).index_select(0, wrapped);
  const auto [sorted, order] = at::sort(self._indices().select(0, dim), /*stable=*/true, 0, false);
  const Matches matches = find_matches(sorted, wanted);
  const Expansion pairs = expand_runs(matches.starts, matches.counts);
  const at::Tensor entries = order.index_select(0, pairs.entries);
  at::Tensor indices = self._indices().index_select(1, entries);
  indices.select(0, dim).copy_(pairs.groups);
  return make_sparse(indices, self._values().index_select(0, entries), sizes,
                     dim == 0 && self.is_coalesced());
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_coalesce", TORCH_FN(neuron_coalesce));
  m.impl("add.out", TORCH_FN(neuron_add_out));
  m.impl("mul.out", TORCH_FN(neuron_mul_out));
  m.impl("_sparse_sum_backward", TORCH_FN(neuron_sparse_sum_backward));
  m.impl("sparse_mask", TORCH_FN(neuron_sparse_mask));
  m.impl("_sparse_mask_projection", TORCH_FN(neuron_sparse_mask_projection));
  m.impl("index_select", TORCH_FN(neuron_index_select));
}

}  // namespace
}  // namespace tn::torch_glue
