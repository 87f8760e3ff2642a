// The device's c10 allocator.

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

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

  bool initialized() override { return is_started(); }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    if (!is_started()) return stats;
    const ArenaStats arena = runtime().device(index).arena().stats();
    auto fill = [](c10::CachingAllocator::StatArray& array, int64_t current, int64_t peak,
                   int64_t allocated, int64_t freed) {
      c10::CachingAllocator::Stat& stat =
          array[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
      stat.current = current;
      stat.peak = peak;
      stat.allocated = allocated;
      stat.freed = freed;
    };
    const int64_t bytes = static_cast<int64_t>(arena.allocated_bytes);
    const int64_t peak = static_cast<int64_t>(arena.peak_bytes);
    fill(stats.allocated_bytes, bytes, peak, 0, 0);
    fill(stats.active_bytes, bytes, peak, 0, 0);
    fill(stats.reserved_bytes, bytes, peak, 0, 0);
    const int64_t live = static_cast<int64_t>(arena.num_allocations - arena.num_frees);
    fill(stats.allocation, live, live, static_cast<int64_t>(arena.num_allocations),
         static_cast<int64_t>(arena.num_frees));
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override {
    if (is_started()) runtime().device(index).arena().reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const ArenaStats arena = runtime().device(index).arena().stats();
    return {arena.capacity_bytes - arena.allocated_bytes, arena.capacity_bytes};
  }
};

NeuronAllocator g_allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &g_allocator);

}  // namespace
}  // namespace tn::torch_glue
