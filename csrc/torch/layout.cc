#include "torch/layout.h"

#include <algorithm>
#include <numeric>

namespace tn::torch_glue {

std::optional<std::vector<int64_t>> dense_order(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  std::vector<int64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    if ((sizes[a] == 1) != (sizes[b] == 1)) return sizes[b] == 1;
    return sizes[a] != 1 && strides[a] > strides[b];
  });
  int64_t expected = 1;
  for (size_t i = order.size(); i-- > 0;) {
    if (sizes[order[i]] == 1) continue;
    if (strides[order[i]] != expected) return std::nullopt;
    expected *= sizes[order[i]];
  }
  return order;
}

Layout layout_for(DType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t bytes) {
  int64_t numel = 1;
  for (int64_t n : sizes) numel *= n;
  const int64_t fits = static_cast<int64_t>(bytes / dtype_size_bytes(dtype));
  if (numel == fits) {
    // Row-major keeps its dimensions, ones included; `dense_order` moves ones to the end.
    int64_t expected = 1;
    bool row_major = true;
    for (size_t i = sizes.size(); i-- > 0 && row_major;) {
      row_major = sizes[i] == 1 || strides[i] == expected;
      expected *= sizes[i];
    }
    if (row_major) return {dtype, sizes.vec()};
    if (auto order = dense_order(sizes, strides)) {
      Layout layout{dtype, {}};
      for (int64_t d : *order) layout.dims.push_back(sizes[d]);
      return layout;
    }
  }
  return {dtype, {fits}};
}

}  // namespace tn::torch_glue
