// Operators whose result's shape depends on data: the size is counted on the device, read, and a
// program of that size is run. Boolean masks as indices are such operators too.

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <torch/library.h>

#include "torch/dispatch/overloads.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

at::Tensor run(const char* name, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<c10::IValue> results;
  overload(name).call(arguments, results);
  return results.at(0).toTensor();
}

int64_t neuron_count_nonzero(const at::Tensor& self) {
  return self.numel() == 0 ? 0 : at::count_nonzero(self).item<int64_t>();
}

at::Tensor neuron_nonzero(const at::Tensor& self) {
  const at::Tensor source =
      self.is_conj() || self.is_neg() ? self.resolve_conj().resolve_neg() : self;
  const c10::IValue arguments[] = {source, neuron_count_nonzero(source), int64_t{-1}};
  return run("aten::nonzero_static", arguments);
}

at::Tensor& neuron_nonzero_out(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong, "nonzero: Expected out tensor to have scalar type ",
              at::kLong, " but got scalar type", out.scalar_type());
  TORCH_CHECK(out.device() == self.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              self.device(), " and ", out.device(), "!");
  const at::Tensor found = neuron_nonzero(self);
  return out.resize_(found.sizes()).copy_(found);
}

at::Tensor neuron_masked_select(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_select: expected BoolTensor for mask, but got ", mask.scalar_type());
  const auto [values, where] = [&] {
    auto expanded = at::broadcast_tensors({self, mask});
    return std::pair(expanded[0], expanded[1]);
  }();
  const at::Tensor positions = neuron_nonzero(where.reshape({-1})).select(1, 0);
  return values.reshape({-1}).index_select(0, positions);
}

at::Tensor& neuron_masked_select_out(const at::Tensor& self, const at::Tensor& mask,
                                     at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == self.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  TORCH_CHECK(out.device() == self.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              self.device(), " and ", out.device(), "!");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  const at::Tensor selected = neuron_masked_select(self, mask);
  return out.resize_(selected.sizes()).copy_(selected);
}

bool is_mask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

using Indices = c10::List<std::optional<at::Tensor>>;

// Masks become the positions of their true elements; CPU indices go to the device, as on CUDA.
Indices integer_indices(const at::Tensor& self, const Indices& indices) {
  Indices result;
  int64_t dim = 0;
  for (const std::optional<at::Tensor>& given : indices) {
    if (!given.has_value() || !given->defined()) {
      result.push_back(std::nullopt);
      ++dim;
      continue;
    }
    const at::Tensor index = given->device() == self.device() ? *given : given->to(self.device());
    if (!is_mask(index)) {
      result.push_back(index);
      ++dim;
      continue;
    }
    for (int64_t i = 0; i < index.dim(); ++i) {
      TORCH_CHECK_INDEX(dim + i < self.dim() && index.size(i) == self.size(dim + i),
                        "The shape of the mask ", index.sizes(), " at index ", i,
                        " does not match the shape of the indexed tensor ", self.sizes(),
                        " at index ", dim + i);
    }
    const at::Tensor positions = neuron_nonzero(index);
    for (int64_t i = 0; i < index.dim(); ++i) result.push_back(positions.select(1, i));
    if (index.dim() == 0) {  // a 0-d mask adds a dimension of its count
      result.push_back(at::zeros({positions.size(0)}, positions.options()));
    }
    dim += index.dim();
  }
  return result;
}

c10::IValue boxed(const Indices& indices) { return c10::IValue(indices); }

bool has_zero_dim_mask(const Indices& indices) {
  for (const std::optional<at::Tensor>& index : indices) {
    if (index.has_value() && index->defined() && is_mask(*index) && index->dim() == 0) return true;
  }
  return false;
}

// A 0-d mask indexes a dimension of size one put in front of its place.
at::Tensor with_mask_dimensions(const at::Tensor& self, const Indices& indices) {
  at::Tensor result = self;
  int64_t dim = 0;
  for (const std::optional<at::Tensor>& index : indices) {
    if (index.has_value() && index->defined() && is_mask(*index)) {
      if (index->dim() == 0) {
        result = result.unsqueeze(dim++);
      } else {
        dim += index->dim();
      }
    } else {
      ++dim;
    }
  }
  return result;
}

at::Tensor neuron_index(const at::Tensor& self, const Indices& indices) {
  const at::Tensor base = has_zero_dim_mask(indices) ? with_mask_dimensions(self, indices) : self;
  const c10::IValue arguments[] = {base, boxed(integer_indices(self, indices))};
  return run("aten::index.Tensor", arguments);
}

at::Tensor& neuron_index_out(const at::Tensor& self, const Indices& indices, at::Tensor& out) {
  const at::Tensor result = neuron_index(self, indices);
  TORCH_CHECK(out.scalar_type() == self.scalar_type(), "index_out: self (", self.scalar_type(),
              ") and result (", out.scalar_type(), ") must have the same scalar type");
  return out.resize_(result.sizes()).copy_(result);
}

at::Tensor& neuron_index_put_(at::Tensor& self, const Indices& indices, const at::Tensor& values,
                              bool accumulate) {
  TORCH_CHECK_INDEX(indices.size() <= static_cast<size_t>(self.dim()) || has_zero_dim_mask(indices),
                    "too many indices for tensor of dimension ", self.dim(), " (got ",
                    indices.size(), ")");
  // One mask and one value need no positions, so nothing waits for a count.
  if (!accumulate && indices.size() == 1 && values.numel() == 1) {
    const std::optional<at::Tensor> only = indices.get(0);
    if (only.has_value() && only->defined() && only->scalar_type() == at::kBool &&
        only->dim() <= self.dim() && only->device() == self.device() &&
        only->sizes() == self.sizes().slice(0, only->dim())) {
      at::Tensor mask = *only;
      while (mask.dim() < self.dim()) mask = mask.unsqueeze(-1);
      self.masked_fill_(mask, values.reshape({}));
      return self;
    }
  }
  at::Tensor base = has_zero_dim_mask(indices) ? with_mask_dimensions(self, indices) : self;
  const c10::IValue arguments[] = {base, boxed(integer_indices(self, indices)), values, accumulate};
  run("aten::index_put_", arguments);
  return self;
}

at::Tensor& neuron_index_put_impl_(at::Tensor& self, const Indices& indices,
                                   const at::Tensor& values, bool accumulate, bool /*unsafe*/) {
  return neuron_index_put_(self, indices, values, accumulate);
}

at::Tensor neuron_index_put(const at::Tensor& self, const Indices& indices,
                            const at::Tensor& values, bool accumulate) {
  at::Tensor result = self.clone(c10::MemoryFormat::Preserve);
  return neuron_index_put_(result, indices, values, accumulate);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", TORCH_FN(neuron_nonzero));
  m.impl("nonzero.out", TORCH_FN(neuron_nonzero_out));
  m.impl("masked_select", TORCH_FN(neuron_masked_select));
  m.impl("masked_select.out", TORCH_FN(neuron_masked_select_out));
  m.impl("index.Tensor", TORCH_FN(neuron_index));
  m.impl("index.Tensor_out", TORCH_FN(neuron_index_out));
  m.impl("index_put_", TORCH_FN(neuron_index_put_));
  m.impl("_index_put_impl_", TORCH_FN(neuron_index_put_impl_));
  m.impl("index_put", TORCH_FN(neuron_index_put));
}

}  // namespace
}  // namespace tn::torch_glue
