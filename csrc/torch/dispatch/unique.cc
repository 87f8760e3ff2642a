// Distinct elements and their counts: sort, mark where neighbours differ, count the marks, gather.
// The count is read from the device, so these wait for it (see dynamic.cc).

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

namespace tn::torch_glue {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::TensorOptions longs(const at::Tensor& like) { return like.options().dtype(at::kLong); }

at::Tensor nothing(const at::Tensor& like) { return at::empty({0}, longs(like)); }

// Runs of equal neighbours in a sequence of `size` elements.
struct Runs {
  at::Tensor starts;  // position of each run's first element
  at::Tensor ids;     // run of each element
  at::Tensor counts;  // length of each run
};

// `differs`: bool of size - 1, whether an element differs from the one before it.
Runs find_runs(const at::Tensor& differs, int64_t size, bool counts) {
  const at::Tensor first = at::ones({1}, differs.options());
  const at::Tensor marks = size > 1 ? at::cat({first, differs}) : first;
  Runs runs;
  runs.starts = at::nonzero(marks).select(1, 0);
  runs.ids = at::cumsum(marks, 0) - 1;
  if (counts) {
    const at::Tensor end = at::full({1}, size, longs(differs));
    runs.counts = at::cat({runs.starts.slice(0, 1), end}) - runs.starts;
  } else {
    runs.counts = nothing(differs);
  }
  return runs;
}

at::Tensor neighbours_differ(const at::Tensor& values) {
  const int64_t n = values.size(0);
  return values.slice(0, 1) != values.slice(0, 0, std::max<int64_t>(n - 1, 0));
}

void check_type(const at::Tensor& self) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "\"unique\" not implemented for '",
                              self.scalar_type(), "'");
}

// Runs back in the order that the elements had before sorting.
at::Tensor unsorted(const at::Tensor& ids, const at::Tensor& order) {
  return at::zeros_like(ids).scatter_(0, order, ids);
}

Three neuron_unique2(const at::Tensor& self, bool /*sorted: they always are*/, bool inverse,
                     bool counts) {
  check_type(self);
  if (self.numel() == 0) {
    return {at::empty({0}, self.options()), at::empty(inverse ? self.sizes() : 0, longs(self)),
            nothing(self)};
  }
  const auto [values, order] = at::sort(self.reshape({-1}));
  const Runs runs = find_runs(neighbours_differ(values), values.size(0), counts);
  return {values.index_select(0, runs.starts),
          inverse ? unsorted(runs.ids, order).view(self.sizes()) : nothing(self), runs.counts};
}

std::tuple<at::Tensor, at::Tensor> neuron_unique(const at::Tensor& self, bool sorted,
                                                 bool inverse) {
  auto [values, places, counts] = neuron_unique2(self, sorted, inverse, false);
  return {values, places};
}

// The slices along `dim` first, and each of them as a row; false when there are none and `result`
// says all.
bool rows_of(const at::Tensor& self, int64_t dim, at::Tensor& slices, at::Tensor& rows,
             Three& result) {
  const auto zero_dims = std::count(self.sizes().begin(), self.sizes().end(), int64_t{0});
  if (self.size(dim) == 0) {
    TORCH_CHECK(zero_dims == 1,
                "Number of zero sized dimensions is more than one, so unique cannot be applied ");
    result = {at::empty(self.sizes(), self.options()), nothing(self), nothing(self)};
    return false;
  }
  TORCH_CHECK(zero_dims == 0,
              "There are 0 sized dimensions, and they aren't selected, so unique cannot be "
              "applied");
  slices = self.movedim(dim, 0).contiguous();
  rows = slices.view({self.size(dim), -1});
  return true;
}

at::Tensor rows_differ(const at::Tensor& rows) { return neighbours_differ(rows).any(1); }

Three neuron_unique_dim(const at::Tensor& self, int64_t dim, bool /*sorted*/, bool inverse,
                        bool counts) {
  check_type(self);
  at::Tensor slices, rows;
  Three result;
  if (!rows_of(self, dim, slices, rows, result)) return result;
  // Lexicographic order: stable sorts by each column, the most significant last.
  at::Tensor order = at::arange(rows.size(0), longs(self));
  for (int64_t column = rows.size(1) - 1; column >= 0; --column) {
    const at::Tensor keys = rows.select(1, column).index_select(0, order);
    order = order.index_select(0, std::get<1>(at::sort(keys, /*stable=*/true, 0, false)));
  }
  const Runs runs = find_runs(rows_differ(rows.index_select(0, order)), rows.size(0), counts);
  return {slices.index_select(0, order.index_select(0, runs.starts)).movedim(0, dim),
          inverse ? unsorted(runs.ids, order) : nothing(self), runs.counts};
}

Three neuron_unique_dim_consecutive(const at::Tensor& self, int64_t dim, bool inverse,
                                    bool counts) {
  check_type(self);
  at::Tensor slices, rows;
  Three result;
  if (!rows_of(self, dim, slices, rows, result)) return result;
  const Runs runs = find_runs(rows_differ(rows), rows.size(0), counts);
  return {slices.index_select(0, runs.starts).movedim(0, dim), inverse ? runs.ids : nothing(self),
          runs.counts};
}

Three neuron_unique_consecutive(const at::Tensor& self, bool inverse, bool counts,
                                std::optional<int64_t> dim) {
  if (dim.has_value() && !(self.dim() == 1 && (*dim == 0 || *dim == -1))) {
    return neuron_unique_dim_consecutive(self, *dim, inverse, counts);
  }
  check_type(self);
  if (self.numel() == 0) {
    return {at::empty({0}, self.options()), at::empty(inverse ? self.sizes() : 0, longs(self)),
            nothing(self)};
  }
  const at::Tensor values = self.reshape({-1});
  const Runs runs = find_runs(neighbours_differ(values), values.size(0), counts);
  return {values.index_select(0, runs.starts),
          inverse ? runs.ids.view(self.sizes()) : nothing(self), runs.counts};
}

at::Tensor neuron_bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights,
                           int64_t minlength) {
  constexpr const char* kInput = "bincount only supports 1-d non-negative integral inputs.";
  TORCH_CHECK_NOT_IMPLEMENTED(at::isIntegralType(self.scalar_type(), /*includeBool=*/false),
                              "\"bincount_cpu\" not implemented for '", self.scalar_type(), "'");
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  if (self.dim() == 1 && self.numel() == 0) return at::zeros({minlength}, longs(self));
  TORCH_CHECK(self.dim() == 1, kInput);
  const bool weighted = weights.has_value() && weights->defined();
  TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->size(0) == self.size(0)),
              "weights should be 1-d and have the same length as input");
  const at::Tensor index = self.to(at::kLong);
  const auto [least, most] = at::aminmax(index);
  const at::Tensor ends = at::stack({least, most}).cpu();
  TORCH_CHECK(ends.const_data_ptr<int64_t>()[0] >= 0, kInput);
  const int64_t size = std::max(ends.const_data_ptr<int64_t>()[1] + 1, minlength);
  at::Tensor values;
  if (weighted) {
    values = weights->scalar_type() == at::kFloat ? *weights : weights->to(at::kDouble);
  } else {
    values = at::ones_like(index);
  }
  return at::zeros({size}, values.options()).scatter_add_(0, index, values);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_unique", TORCH_FN(neuron_unique));
  m.impl("_unique2", TORCH_FN(neuron_unique2));
  m.impl("unique_dim", TORCH_FN(neuron_unique_dim));
  m.impl("unique_consecutive", TORCH_FN(neuron_unique_consecutive));
  m.impl("unique_dim_consecutive", TORCH_FN(neuron_unique_dim_consecutive));
  m.impl("bincount", TORCH_FN(neuron_bincount));
}

}  // namespace
}  // namespace tn::torch_glue
