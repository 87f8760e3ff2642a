// Histograms over given or even bin edges, of one or several dimensions: each coordinate's bin is
// searched among the edges, and weights are added up by bin. Even edges need the data's range,
// which is read from the device unless it is given.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <vector>

namespace tn::torch_glue {
namespace {

using Pair = std::tuple<at::Tensor, at::Tensor>;
using Range = std::optional<c10::ArrayRef<double>>;
using Weight = std::optional<at::Tensor>;

void check_input(const at::Tensor& self, const Weight& weight) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()),
                              "\"histogramdd\" not implemented for '", self.scalar_type(), "'");
  if (!weight.has_value() || !weight->defined()) return;
  TORCH_CHECK(weight->scalar_type() == self.scalar_type(),
              "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor "
              "should have the same dtype, but got input(",
              self.scalar_type(), "), and weight(", weight->scalar_type(), ")");
}

// Samples as rows: (samples, dimensions).
at::Tensor as_rows(const at::Tensor& self) {
  TORCH_CHECK(self.dim() >= 2,
              "torch.histogramdd: input tensor should have at least 2 dimensions, but got ",
              self.dim());
  return self.reshape({-1, self.size(-1)});
}

// The smallest and the largest value of each dimension, or what `range` says.
std::vector<double> outer_edges(const at::Tensor& rows, const Range& range) {
  const auto dims = static_cast<size_t>(rows.size(1));
  std::vector<double> ends;
  if (range.has_value()) {
    TORCH_CHECK(range->size() == 2 * dims, "torch.histogramdd: for a ", dims,
                "-dimensional histogram range should have ", 2 * dims, " elements, but got ",
                range->size());
    ends = range->vec();
  } else if (rows.numel() == 0) {
    for (size_t d = 0; d < dims; ++d) ends.insert(ends.end(), {0.0, 1.0});
  } else {
    const auto [least, most] = at::aminmax(rows, /*dim=*/0);
    const at::Tensor host = at::stack({least, most}, 1).to(at::Device(at::kCPU), at::kDouble);
    const double* values = host.const_data_ptr<double>();
    ends.assign(values, values + 2 * dims);
  }
  for (size_t d = 0; d < dims; ++d) {
    double &left = ends[2 * d], &right = ends[2 * d + 1];
    TORCH_CHECK(std::isfinite(left) && std::isfinite(right), "torch.histogramdd: dimension ", d,
                "'s range [", left, ", ", right, "] is not finite");
    TORCH_CHECK(left <= right, "torch.histogramdd: min should not exceed max, but got min ", left,
                " max ", right, " for dimension ", d);
    if (left == right) {
      left -= 0.5;
      right += 0.5;
    }
  }
  return ends;
}

std::vector<at::Tensor> even_edges(const at::Tensor& rows, c10::IntArrayRef bins,
                                   const Range& range) {
  TORCH_CHECK(static_cast<int64_t>(bins.size()) == rows.size(1), "torch.histogramdd: expected ",
              rows.size(1), " sequences of bin edges for a ", rows.size(1),
              "-dimensional histogram but got ", bins.size());
  const std::vector<double> ends = outer_edges(rows, range);
  std::vector<at::Tensor> edges;
  for (size_t d = 0; d < bins.size(); ++d) {
    TORCH_CHECK(bins[d] > 0, "torch.histogramdd(): bins must be > 0, but got ", bins[d],
                " for dimension ", d);
    // Made where their ends are known: in float64 the device would round them (decision D6), and
    // the extremes would fall out.
    edges.push_back(
        at::linspace(ends[2 * d], ends[2 * d + 1], bins[d] + 1, rows.options().device(at::kCPU))
            .to(rows.device()));
  }
  return edges;
}

void check_edges(const at::Tensor& rows, at::TensorList edges) {
  TORCH_CHECK(static_cast<int64_t>(edges.size()) == rows.size(1), "torch.histogramdd: expected ",
              rows.size(1), " sequences of bin edges for a ", rows.size(1),
              "-dimensional histogram but got ", edges.size());
  for (const at::Tensor& edge : edges) {
    TORCH_CHECK(edge.scalar_type() == rows.scalar_type(),
                "torch.histogramdd: input tensor and bins tensors should have the same dtype, but "
                "got input with dtype ",
                rows.scalar_type(), " and bins with dtype ", edge.scalar_type());
    TORCH_CHECK(edge.dim() == 1,
                "torch.histogramdd: bins tensor should have one dimension, but "
                "got ",
                edge.dim());
    TORCH_CHECK(edge.numel() > 0, "torch.histogramdd: bins tensor should have at least 1 element");
  }
}

// Sums of weights by bin; the last bin has its right edge, values outside and nan have no bin.
at::Tensor count(const at::Tensor& rows, at::TensorList edges, const Weight& weight, bool density) {
  std::vector<int64_t> sizes;
  at::Tensor place = at::zeros({rows.size(0)}, rows.options().dtype(at::kLong));
  at::Tensor inside = at::ones({rows.size(0)}, rows.options().dtype(at::kBool));
  for (size_t d = 0; d < edges.size(); ++d) {
    const at::Tensor x = rows.select(1, static_cast<int64_t>(d)).contiguous();
    const int64_t bins = edges[d].size(0) - 1;
    sizes.push_back(bins);
    inside = inside & (x >= edges[d].select(0, 0)) & (x <= edges[d].select(0, -1));
    const at::Tensor bin =
        at::searchsorted(edges[d].contiguous(), x, /*out_int32=*/false, /*right=*/true) - 1;
    place = place * bins + bin.clamp(0, std::max<int64_t>(bins - 1, 0));
  }
  int64_t total = 1;
  for (const int64_t size : sizes) total *= size;
  at::Tensor hist = at::zeros({total}, rows.options());
  if (total > 0 && rows.size(0) > 0) {
    const at::Tensor weights = weight.has_value() && weight->defined()
                                   ? weight->reshape({-1})
                                   : at::ones({rows.size(0)}, rows.options());
    hist.index_add_(0, place, weights.masked_fill(inside.logical_not(), 0));
  }
  hist = hist.view(sizes);
  if (density) {
    hist = hist / hist.sum();
    for (size_t d = 0; d < edges.size(); ++d) {
      std::vector<int64_t> along(sizes.size(), 1);
      along[d] = sizes[d];
      hist = hist / at::diff(edges[d]).view(along);
    }
  }
  return hist;
}

Pair histogram_bins(const at::Tensor& self, const at::Tensor& bins, const Weight& weight,
                    bool density) {
  check_input(self, weight);
  const at::Tensor rows = self.reshape({-1, 1});
  check_edges(rows, bins);
  return {count(rows, bins, weight, density), bins.clone()};
}

Pair histogram_count(const at::Tensor& self, int64_t bins, Range range, const Weight& weight,
                     bool density) {
  check_input(self, weight);
  const at::Tensor rows = self.reshape({-1, 1});
  const at::Tensor edges = even_edges(rows, bins, range)[0];
  return {count(rows, edges, weight, density), edges};
}

std::tuple<at::Tensor&, at::Tensor&> into(const Pair& result, at::Tensor& hist,
                                          at::Tensor& bin_edges) {
  TORCH_CHECK(hist.scalar_type() == std::get<0>(result).scalar_type() &&
                  bin_edges.scalar_type() == std::get<1>(result).scalar_type(),
              "torch.histogram: input tensor and hist and bin_edges should have the same dtype");
  for (const at::Tensor* out : {&hist, &bin_edges}) {
    TORCH_CHECK(out->device() == std::get<0>(result).device(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                std::get<0>(result).device(), " and ", out->device(), "!");
  }
  at::native::resize_output(hist, std::get<0>(result).sizes());
  at::native::resize_output(bin_edges, std::get<1>(result).sizes());
  hist.copy_(std::get<0>(result));
  bin_edges.copy_(std::get<1>(result));
  return {hist, bin_edges};
}

std::tuple<at::Tensor&, at::Tensor&> histogram_bins_out(const at::Tensor& self,
                                                        const at::Tensor& bins,
                                                        const Weight& weight, bool density,
                                                        at::Tensor& hist, at::Tensor& bin_edges) {
  return into(histogram_bins(self, bins, weight, density), hist, bin_edges);
}

std::tuple<at::Tensor&, at::Tensor&> histogram_count_out(const at::Tensor& self, int64_t bins,
                                                         Range range, const Weight& weight,
                                                         bool density, at::Tensor& hist,
                                                         at::Tensor& bin_edges) {
  return into(histogram_count(self, bins, range, weight, density), hist, bin_edges);
}

std::vector<at::Tensor> histogramdd_edges(const at::Tensor& self, c10::IntArrayRef bins,
                                          Range range, const Weight& weight, bool /*density*/) {
  check_input(self, weight);
  return even_edges(as_rows(self), bins, range);
}

at::Tensor histogramdd_counts(const at::Tensor& self, c10::IntArrayRef bins, Range range,
                              const Weight& weight, bool density) {
  check_input(self, weight);
  const at::Tensor rows = as_rows(self);
  return count(rows, even_edges(rows, bins, range), weight, density);
}

at::Tensor histogramdd_tensors(const at::Tensor& self, at::TensorList bins, const Weight& weight,
                               bool density) {
  check_input(self, weight);
  const at::Tensor rows = as_rows(self);
  check_edges(rows, bins);
  return count(rows, bins, weight, density);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("histogram.bins_tensor", TORCH_FN(histogram_bins));
  m.impl("histogram.bins_tensor_out", TORCH_FN(histogram_bins_out));
  m.impl("histogram.bin_ct", TORCH_FN(histogram_count));
  m.impl("histogram.bin_ct_out", TORCH_FN(histogram_count_out));
  m.impl("_histogramdd_bin_edges", TORCH_FN(histogramdd_edges));
  m.impl("_histogramdd_from_bin_cts", TORCH_FN(histogramdd_counts));
  m.impl("_histogramdd_from_bin_tensors", TORCH_FN(histogramdd_tensors));
}

}  // namespace
}  // namespace tn::torch_glue
