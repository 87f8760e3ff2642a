// Pinned host memory: what `pin_memory()` gives. Transfers of the CPU plugin need no page locking;
// the memory is aligned so that a plugin may use it without a copy, and known as pinned.

#include "torch/pinned.h"

#include <ATen/core/CachingHostAllocator.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>

#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

constexpr size_t kAlignment = 64;  // what XLA's CPU plugins want for use in place

struct Blocks {
  std::mutex mutex;
  std::map<uintptr_t, size_t> live;  // address, bytes
  size_t bytes = 0;
  size_t peak_bytes = 0;
  uint64_t allocations = 0;
  uint64_t frees = 0;
};

Blocks& blocks() {
  static Blocks* instance = new Blocks;
  return *instance;
}

void release(void* pointer) {
  if (!pointer) return;
  {
    std::lock_guard lock(blocks().mutex);
    auto it = blocks().live.find(reinterpret_cast<uintptr_t>(pointer));
    if (it != blocks().live.end()) {
      blocks().bytes -= it->second;
      ++blocks().frees;
      blocks().live.erase(it);
    }
  }
  std::free(pointer);
}

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* pointer = rounded ? std::aligned_alloc(kAlignment, rounded) : nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, pointer || !rounded, "cannot allocate ", bytes,
                     " bytes of pinned host memory");
    if (pointer) {
      std::lock_guard lock(blocks().mutex);
      blocks().live.emplace(reinterpret_cast<uintptr_t>(pointer), rounded);
      blocks().bytes += rounded;
      blocks().peak_bytes = std::max(blocks().peak_bytes, blocks().bytes);
      ++blocks().allocations;
    }
    return {pointer, pointer, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }

  // Copies read the memory before they return, so nothing must be remembered.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    at::HostStats stats;
    std::lock_guard lock(blocks().mutex);
    stats.allocated_bytes.current = static_cast<int64_t>(blocks().bytes);
    stats.allocated_bytes.peak = static_cast<int64_t>(blocks().peak_bytes);
    stats.allocations.current = static_cast<int64_t>(blocks().live.size());
    stats.allocations.allocated = static_cast<int64_t>(blocks().allocations);
    stats.allocations.freed = static_cast<int64_t>(blocks().frees);
    return stats;
  }
  void reset_accumulated_stats() override {
    std::lock_guard lock(blocks().mutex);
    blocks().allocations = blocks().frees = 0;
  }
  void reset_peak_stats() override {
    std::lock_guard lock(blocks().mutex);
    blocks().peak_bytes = blocks().bytes;
  }
};

PinnedAllocator g_allocator;
REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &g_allocator);

}  // namespace

c10::Allocator* pinned_allocator() { return &g_allocator; }

bool is_pinned(const void* pointer) {
  std::lock_guard lock(blocks().mutex);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto after = blocks().live.upper_bound(address);
  if (after == blocks().live.begin()) return false;
  const auto& [start, bytes] = *std::prev(after);
  return address < start + bytes;
}

}  // namespace tn::torch_glue
