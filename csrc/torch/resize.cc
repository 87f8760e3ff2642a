#include "torch/resize.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/slice.h>

#include "runtime/segments.h"
#include "torch/memory.h"
#include "torch/runtime.h"

namespace tn::torch_glue {

void resize_storage(const c10::Storage& handle, size_t bytes) {
  auto* storage = static_cast<DeviceStorage*>(handle.data_ptr().get_context());
  TORCH_CHECK(storage, "cannot resize a neuron storage that was released");
  if (bytes == storage->bytes) return;
  TORCH_CHECK(!storage->shared || storage->shared->exports == 0,
              "cannot resize a neuron storage whose memory is exported through DLPack: let go of "
              "what was exported first");
  Device& device = *storage->device;
  if (storage->use_count() > 1) {
    // Launches that wait for a compile hold a reference, and know the old layout.
    ReleaseGil no_gil;
    std::unique_lock lock(runtime().mutex);
    device.drain(lock);
  }
  const size_t item = dtype_size_bytes(storage->layout.dtype);
  // A size that the old dtype does not divide continues as bytes.
  const DType dtype = bytes % item == 0 ? storage->layout.dtype : DType::kU8;
  const auto elements = static_cast<int64_t>(bytes / dtype_size_bytes(dtype));
  Ref<DeviceStorage> fresh = new_storage(device, bytes, {dtype, {elements}});
  if (!storage->is_empty() && storage->bytes > 0 && bytes > 0) {
    // Pad or cut on the device, then take over the result.
    const auto old = static_cast<int64_t>(storage->bytes / dtype_size_bytes(dtype));
    at::Tensor flat = make_tensor(Ref<DeviceStorage>(storage), to_scalar_type(dtype), {old}, {});
    at::Tensor changed = elements > old ? at::constant_pad_nd(flat, {0, elements - old}, 0)
                                        : at::slice(flat, 0, 0, elements).clone();
    Runtime& rt = runtime();
    ReleaseGil no_gil;
    std::unique_lock lock(rt.mutex);
    device.drain(lock);
    DeviceStorage* made = storage_of(changed);
    fresh->layout = made->layout;
    fresh->buffer = made->buffer;
    fresh->failure = made->failure;
  }
  {
    std::unique_lock lock(runtime().mutex);
    std::swap(storage->block, fresh->block);
    std::swap(storage->address, fresh->address);
    for (DeviceStorage* s : {storage, fresh.get()}) {
      if (s->block) s->block->owner.store(s, std::memory_order_relaxed);
    }
    std::swap(storage->bytes, fresh->bytes);
    std::swap(storage->layout, fresh->layout);
    std::swap(storage->buffer, fresh->buffer);
    storage->failure = fresh->failure;
  }
  c10::StorageImpl* impl = handle.unsafeGetStorageImpl();
  c10::DataPtr old = impl->set_data_ptr(c10::DataPtr(reinterpret_cast<void*>(storage->address),
                                                     storage, &release_storage, handle.device()));
  old.release_context();  // the same context lives on in the new pointer
  impl->set_nbytes(bytes);
}

}  // namespace tn::torch_glue
