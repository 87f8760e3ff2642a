#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "host/kernels.h"

namespace tn::host {
namespace {

constexpr int64_t kGrain = 32768;  // elements, as ATen's own loops

}  // namespace

// Adds values (P, N) into P planes of zeros (P, M), each at its position (int64, one a value).
// Positions out of range are left out. What the backward passes of max pooling do; ATen's own
// trust the positions.
void add_in_planes(const Call& call) {
  const at::Tensor values = call.arg(0);
  const at::Tensor positions = call.arg(1);
  const at::Tensor planes = call.result(0);
  TORCH_CHECK(values.dim() == 2 && planes.dim() == 2 && values.sizes() == positions.sizes() &&
                  values.size(0) == planes.size(0),
              "expected values and positions (P, N) and planes (P, M), got ", values.sizes(), ", ",
              positions.sizes(), " and ", planes.sizes());
  TORCH_CHECK(positions.scalar_type() == c10::kLong && values.dtype() == planes.dtype(),
              "expected int64 positions and planes of the values' dtype");
  const int64_t count = values.size(1);
  const int64_t size = planes.size(1);
  const int64_t grain = std::max<int64_t>(1, kGrain / (count + size));
  AT_DISPATCH_FLOATING_TYPES(values.scalar_type(), "add_in_planes", [&] {
    const auto* from = values.const_data_ptr<scalar_t>();
    const auto* at = positions.const_data_ptr<int64_t>();
    auto* to = planes.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, planes.size(0), grain, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        scalar_t* const sums = to + plane * size;
        std::fill_n(sums, size, scalar_t(0));
        for (int64_t i = plane * count; i < (plane + 1) * count; ++i) {
          // Unsigned, a negative position is too large.
          if (static_cast<uint64_t>(at[i]) < static_cast<uint64_t>(size)) sums[at[i]] += from[i];
        }
      }
    });
  });
}

}  // namespace tn::host
