// Which buffer shape a tensor's storage gets.
#pragma once

#include <c10/util/ArrayRef.h>

#include <optional>
#include <vector>

#include "runtime/storage.h"

namespace tn::torch_glue {

// Dimensions from outermost to innermost of a dense, non-overlapping tensor; nothing otherwise.
std::optional<std::vector<int64_t>> dense_order(c10::IntArrayRef sizes, c10::IntArrayRef strides);

// The layout for a storage of `bytes` that a tensor of these sizes and strides fills from its
// start: the tensor's own dimensions in memory order when it is dense, else flat elements.
Layout layout_for(DType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t bytes);

}  // namespace tn::torch_glue
