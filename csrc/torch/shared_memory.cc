#include "torch/shared_memory.h"

#include <ATen/ops/from_blob.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "torch/memory.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

constexpr size_t kAlignment = 64;  // what XLA's CPU plugins want for use in place

struct Block {
  explicit Block(size_t bytes)
      : data(std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment)) {}
  ~Block() { std::free(data); }
  Block(const Block&) = delete;
  void* const data;
};

// The plugin's view of `memory`, or null when it made a copy instead. The memory stays until the
// plugin is done with it.
Result<Ref<DeviceBuffer>> view_of(const SharedMemory& memory, const DeviceStorage& storage,
                                  HostSemantics semantics) {
  Event done;
  TN_ASSIGN_OR_RETURN(Buffer buffer, runtime().client().from_host(
                                         memory.data, storage.layout.dtype, storage.layout.dims,
                                         storage.device->pjrt(), semantics, &done));
  done.on_ready([owner = memory.owner](Status) {});
  Result<uintptr_t> address = buffer.unsafe_pointer();
  if (!address.ok() || address.value() != reinterpret_cast<uintptr_t>(memory.data)) {
    return Ref<DeviceBuffer>();
  }
  return Ref<DeviceBuffer>(new DeviceBuffer(std::move(buffer)));
}

// Copies the contents into `memory` and makes the plugin's view of it the buffer. False: the plugin
// cannot share; nothing changed then.
bool bind_storage(DeviceStorage& storage, const std::shared_ptr<SharedMemory>& memory) {
  Device& device = *storage.device;
  std::unique_lock lock(runtime().mutex);
  while (true) {
    device.drain(lock);
    if (storage.failure) raise({"RuntimeError", *storage.failure});
    if (!storage.buffer) check(device.materialize(storage), "share device memory");
    Ref<DeviceBuffer> held = storage.buffer;
    lock.unlock();
    check(held->buffer().read(memory->data, memory->bytes), "share device memory");
    Result<Ref<DeviceBuffer>> view = view_of(*memory, storage, HostSemantics::kMutableZeroCopy);
    check(view.status(), "share device memory");
    lock.lock();
    if (!view.value()) return false;
    if (storage.buffer.get() != held.get()) continue;  // another thread wrote in between
    storage.buffer = std::move(view).value();
    storage.shared = memory;
    return true;
  }
}

void release_export(DeviceStorage& storage, const std::shared_ptr<SharedMemory>& memory) {
  ReleaseGil no_gil;
  std::unique_lock lock(runtime().mutex);
  // The buffer goes on using the block, which nobody else sees from now on.
  if (--memory->exports == 0 && storage.shared == memory) storage.shared = nullptr;
}

}  // namespace

bool any_shared_memory() { return SharedMemory::count().load(std::memory_order_relaxed) != 0; }

void settle_shared_memory(DeviceStorage& storage) {
  ReleaseGil no_gil;
  std::shared_ptr<SharedMemory> memory;
  Ref<DeviceBuffer> now;
  {
    std::unique_lock lock(runtime().mutex);
    if (!storage.shared) return;
  }
  // Whoever reads the block must be through before it is written here.
  synchronize(*storage.device);
  {
    std::unique_lock lock(runtime().mutex);
    memory = storage.shared;
    now = storage.buffer;
    if (memory && memory->read_only) {
      if (now.get() != memory->read_only.get()) storage.shared = nullptr;
      return;
    }
  }
  if (!memory || !now) return;
  Result<uintptr_t> address = now->buffer().unsafe_pointer();
  if (address.ok() && address.value() == reinterpret_cast<uintptr_t>(memory->data)) return;
  now = {};
  TORCH_CHECK(bind_storage(storage, memory), "this plugin can no longer share device memory");
}

std::optional<at::Tensor> export_to_host(const at::Tensor& tensor) {
  Ref<DeviceStorage> storage(storage_of(tensor));
  std::shared_ptr<SharedMemory> memory;
  {
    ReleaseGil no_gil;
    {
      std::unique_lock lock(runtime().mutex);
      memory = storage->shared;
      if (memory && memory->read_only) memory = nullptr;
      if (memory) ++memory->exports;
    }
    if (!memory) {
      auto block = std::make_shared<Block>(storage->bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, block->data, "cannot allocate ", storage->bytes,
                       " bytes of host memory to export a neuron tensor");
      memory = std::make_shared<SharedMemory>();
      memory->data = block->data;
      memory->bytes = storage->bytes;
      memory->owner = std::move(block);
      memory->exports = 1;
      synchronize(*storage->device);
      if (!bind_storage(*storage, memory)) return std::nullopt;
    }
  }
  synchronize(*storage->device);
  auto* data = static_cast<char*>(memory->data) + tensor.storage_offset() * tensor.itemsize();
  return at::from_blob(
      data, tensor.sizes(), tensor.strides(),
      [storage, memory](void*) { release_export(*storage, memory); },
      at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU));
}

std::optional<at::Tensor> import_read_only(const at::Tensor& host, int index) {
  const size_t bytes = host.nbytes();
  Device& device = runtime().device(checked_device(index));
  Ref<DeviceStorage> storage =
      new_storage(device, bytes, fresh_layout(to_dtype(host.scalar_type()), host.sizes()));
  auto memory = std::make_shared<SharedMemory>();
  memory->data = const_cast<void*>(host.const_data_ptr());
  memory->bytes = bytes;
  memory->owner = std::make_shared<at::Tensor>(host);
  Result<Ref<DeviceBuffer>> view = view_of(*memory, *storage, HostSemantics::kImmutableZeroCopy);
  check(view.status(), "import host memory");
  if (!view.value()) return std::nullopt;
  memory->read_only = view.value();
  {
    std::unique_lock lock(runtime().mutex);
    storage->buffer = view.value();
    storage->shared = memory;
  }
  return make_tensor(std::move(storage), host.scalar_type(), host.sizes(), {});
}

}  // namespace tn::torch_glue
