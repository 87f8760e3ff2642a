// Views are metadata: nothing here launches anything.

#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "torch/memory.h"
#include "torch/resize.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef sizes,
                          std::optional<c10::MemoryFormat> memory_format) {
  if (self.sizes() == sizes && !memory_format) return self;
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  const size_t bytes =
      at::detail::computeStorageNbytesContiguous(sizes, impl->itemsize(), impl->storage_offset());
  // First, so that a tensor for which there is no memory stays as it is.
  if (c10::multiply_integers(sizes) > 0 && bytes > self.storage().nbytes()) {
    resize_storage(self.storage(), bytes);
  }
  impl->set_sizes_contiguous(sizes);
  if (memory_format && *memory_format != c10::MemoryFormat::Contiguous) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve,
                "Unsupported memory format: resize_ takes no torch.preserve_format");
    impl->empty_tensor_restride(*memory_format);
  }
  // A storage without contents takes the tensor's shape, as if it had been created so; not while a
  // launch waits that holds a reference and knows the old layout.
  DeviceStorage* storage = storage_of(self);
  if (storage->is_empty() && storage->use_count() == 1 && impl->is_contiguous() &&
      impl->storage_offset() == 0 && bytes == storage->bytes) {
    storage->layout = fresh_layout(to_dtype(self.scalar_type()), sizes);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset,
                        c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  TORCH_CHECK(source.device().type() == c10::DeviceType::PrivateUse1,
              "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(),
              "\".  This is no longer allowed; the devices must match.");
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (strides.empty() && !sizes.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  const size_t bytes =
      at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), impl->itemsize(), offset);
  if (impl->numel() > 0 && bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  Device& device = runtime().device(self.device().index());
  const DType dtype = to_dtype(self.scalar_type());
  at::Tensor empty = make_tensor(new_storage(device, 0, {dtype, {0}}), self.scalar_type(), {0}, {});
  return set_storage(self, empty.storage(), 0, {0}, {});
}

// Lets Module.to("neuron") keep its Parameter objects, as on CUDA: an optimizer built before the
// move goes on training them.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  auto dense = [](const at::Tensor& t) {
    return t.layout() == c10::kStrided &&
           (t.device().is_cpu() || t.device().is_privateuseone() || t.device().is_cuda());
  };
  return dense(self) && dense(from);
}

void record_stream(at::Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_", TORCH_FN(set_nothing));
  m.impl("set_.source_Tensor", TORCH_FN(set_source_tensor));
  m.impl("set_.source_Storage", TORCH_FN(set_source_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
}

}  // namespace
}  // namespace tn::torch_glue
