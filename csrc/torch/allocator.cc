// The device's c10 allocator: the door to the segment allocator for torch.accelerator.

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "torch/memory.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

class NeuronAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Device& device = runtime().device(current_device());
    Ref<DeviceStorage> storage =
        new_storage(device, bytes, {DType::kU8, {static_cast<int64_t>(bytes)}});
    storage->ref();
    return {
        reinterpret_cast<void*>(storage->address), storage.get(), &release_storage,
        c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device.index()))};
  }
  // A storage is found through its context, so there is no deleter for a bare address.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "neuron memory has no host-visible address: copy tensors with "
                                "copy_(), not their bytes");
  }

  bool initialized() override { return is_started() && !in_bad_fork(); }
  void emptyCache(c10::MempoolId_t) override {
    if (!initialized()) return;
    for (int i = 0; i < num_devices(); ++i) memory(i).empty_cache();
  }
  // Streams share one queue, and the plugin keeps a buffer that work in flight uses.
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    checked_device(index);
    c10::CachingDeviceAllocator::DeviceStats result;
    if (!initialized()) return result;
    const MemoryStats stats = memory(index).stats();
    fill(result.allocation, stats.allocation);
    fill(result.segment, stats.segment);
    fill(result.active, stats.active);
    fill(result.inactive_split, stats.inactive_split);
    fill(result.allocated_bytes, stats.allocated_bytes);
    fill(result.reserved_bytes, stats.reserved_bytes);
    fill(result.active_bytes, stats.active_bytes);
    fill(result.inactive_split_bytes, stats.inactive_split_bytes);
    fill(result.requested_bytes, stats.requested_bytes);
    result.max_split_size = -1;  // as CUDA says that there is none
    result.num_alloc_retries = stats.num_alloc_retries;
    result.num_ooms = stats.num_ooms;
    result.num_device_alloc = stats.num_device_alloc;
    result.num_device_free = stats.num_device_free;
    return result;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    checked_device(index);
    if (initialized()) memory(index).reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    checked_device(index);
    if (initialized()) memory(index).reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    return {memory(index).free_bytes(), memory(index).capacity()};
  }

 private:
  static SegmentAllocator& memory(int index) {
    return runtime().device(checked_device(index)).memory();
  }
  static void fill(c10::CachingAllocator::StatArray& array, const MemoryStatByPool& stats) {
    for (size_t pool = 0; pool < stats.pools.size(); ++pool) {
      array[pool].current = stats.pools[pool].current;
      array[pool].peak = stats.pools[pool].peak;
      array[pool].allocated = stats.pools[pool].allocated;
      array[pool].freed = stats.pools[pool].freed;
    }
  }
};

NeuronAllocator g_allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &g_allocator);

}  // namespace
}  // namespace tn::torch_glue
