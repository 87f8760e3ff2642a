#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>

#include <tuple>

#include "host/kernels.h"

namespace tn::host {

// Values in order along `dim`, equal ones as they came, and their positions.
void sort(const Call& call) {
  at::Tensor values = call.result(0);
  at::Tensor positions = call.result(1);
  at::sort_out(values, positions, call.arg(0), /*stable=*/true, call.integer("dim"),
               call.integer("descending") != 0);
}

// The first values along `dim`, as many as the results have, and their positions.
void topk(const Call& call) {
  at::Tensor values = call.result(0);
  at::Tensor positions = call.result(1);
  const int64_t dim = call.integer("dim");
  at::topk_out(values, positions, call.arg(0), values.size(dim), dim, call.integer("largest") != 0,
               /*sorted=*/true);
}

}  // namespace tn::host
