// Factories: tensors with an address and no buffer yet.

#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <torch/library.h>

#include "torch/layout.h"
#include "torch/memory.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

Device& target(std::optional<c10::Device> device) {
  return runtime().device(checked_device(device ? device->index() : -1));
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == c10::kStrided,
                              "neuron tensors are strided; got layout ", *layout,
                              ". Create sparse tensors on the CPU.");
  TORCH_CHECK(
      !pin_memory || !*pin_memory,
      "Only dense CPU tensors can be pinned: pin_memory=True was given for a neuron tensor");
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<c10::ScalarType> dtype_opt,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  const c10::ScalarType type = c10::dtype_or_default(dtype_opt);
  const DType dtype = to_dtype(type);
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, dtype_size_bytes(dtype));
  return make_tensor(new_storage(target(device), bytes, layout_for(dtype, sizes, strides, bytes)),
                     type, sizes, strides);
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype_opt,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> memory_format) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  const c10::ScalarType type = c10::dtype_or_default(dtype_opt);
  const DType dtype = to_dtype(type);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, dtype_size_bytes(dtype));
  at::Tensor tensor =
      make_tensor(new_storage(target(device), bytes, fresh_layout(dtype, sizes)), type, sizes, {});
  const auto format = memory_format.value_or(c10::MemoryFormat::Contiguous);
  TORCH_CHECK(format != c10::MemoryFormat::Preserve,
              "empty() takes no memory_format=torch.preserve_format");
  if (format != c10::MemoryFormat::Contiguous) {
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(format);
    storage_of(tensor)->layout = layout_for(dtype, sizes, tensor.strides(), bytes);
  }
  return tensor;
}

// A tensor of zeros without storage, as derivatives use it: other operators read the dispatch key.
at::Tensor efficient_zero(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                          std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                          std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const int index = device && device->has_index() ? device->index() : current_device();
  at::native::ZeroTensorAllocator allocator(
      c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)));
  constexpr auto keys =
      c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor});
  return at::detail::empty_generic(sizes, &allocator, keys, c10::dtype_or_default(dtype),
                                   std::nullopt);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_efficientzerotensor", TORCH_FN(efficient_zero));
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
}

}  // namespace
}  // namespace tn::torch_glue
