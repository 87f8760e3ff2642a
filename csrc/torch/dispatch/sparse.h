// What the kernels for sparse COO tensors share. Indices are (sparse_dim, nnz), int64; values are
// (nnz, dense sizes...); both are dense tensors of the device.
#pragma once

#include <ATen/core/Tensor.h>

namespace tn::torch_glue {

// A sparse tensor over `indices` and `values`, which it shares.
at::Tensor make_sparse(const at::Tensor& indices, const at::Tensor& values, c10::IntArrayRef sizes,
                       bool coalesced);
// Makes `out` hold what `result` holds, converted to its dtype. Throws where PyTorch would not
// cast.
at::Tensor& store_sparse(const at::Tensor& result, at::Tensor& out, const char* operation);
// Row-major position of each entry among the sparse dimensions: int64 (nnz).
at::Tensor entry_positions(const at::Tensor& indices, c10::IntArrayRef sizes);

// Joins of groups with runs of entries: group g takes the entries starts[g] and on, counts[g] many.
struct Expansion {
  at::Tensor groups;   // int64 (total): the group of each pair
  at::Tensor entries;  // int64 (total): the entry of each pair
};
// Waits for the total, which is the length of the result.
Expansion expand_runs(const at::Tensor& starts, const at::Tensor& counts);

// Where the values of `sorted` that equal each of `keys` begin and how many there are.
struct Matches {
  at::Tensor starts, counts;
};
Matches find_matches(const at::Tensor& sorted, const at::Tensor& keys);

// Position in `sorted` of each of `keys`, and which of them are there. `sorted` has an element.
struct Lookup {
  at::Tensor places, found;
};
Lookup look_up(const at::Tensor& sorted, const at::Tensor& keys);

}  // namespace tn::torch_glue
