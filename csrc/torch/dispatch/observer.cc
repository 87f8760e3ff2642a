// The moving-average observer of quantisation, whose statistics are empty before the first call.

#include <ATen/Functions.h>
#include <torch/library.h>

#include <tuple>

#include "torch/dispatch/overloads.h"

namespace tn::torch_glue {
namespace {

// One value for each channel, as CPU's kernel prepares them.
void prepare(const at::Tensor& statistic, int64_t channels, double value) {
  if (statistic.numel() == 0) at::Tensor(statistic).resize_({channels}).fill_(value);
}

std::tuple<at::Tensor, at::Tensor> neuron_observe(
    const at::Tensor& self, const at::Tensor& observer_on, const at::Tensor& fake_quant_on,
    at::Tensor& running_min, at::Tensor& running_max, at::Tensor& scale, at::Tensor& zero_point,
    double averaging, int64_t quant_min, int64_t quant_max, int64_t axis, bool per_row,
    bool symmetric) {
  TORCH_CHECK(axis < self.dim(),
              "Error in fused_moving_avg_obs_fake_quant_cpu: ch_axis must be < "
              "self.dim()");
  if (per_row) {
    const int64_t channels = self.size(axis);
    prepare(running_min, channels, std::numeric_limits<double>::infinity());
    prepare(running_max, channels, -std::numeric_limits<double>::infinity());
    prepare(scale, channels, 1);
    prepare(zero_point, channels, 0);
  }
  const c10::IValue arguments[] = {self,  observer_on, fake_quant_on, running_min, running_max,
                                   scale, zero_point,  averaging,     quant_min,   quant_max,
                                   axis,  per_row,     symmetric};
  std::vector<c10::IValue> results;
  overload("aten::_fused_moving_avg_obs_fq_helper").call(arguments, results);
  return {results.at(0).toTensor(), results.at(1).toTensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_moving_avg_obs_fq_helper", TORCH_FN(neuron_observe));
}

}  // namespace
}  // namespace tn::torch_glue
