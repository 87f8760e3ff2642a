// Pinned host memory: what `pin_memory()` gives. Transfers of the CPU plugin need no page locking;
// the memory is aligned so that a plugin may use it without a copy, and known as pinned. Freed
// blocks are kept by size, in powers of two, until `empty_host_cache`: pages that were touched stay
// touched.

#include "torch/pinned.h"

#include <ATen/core/CachingHostAllocator.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

constexpr size_t kAlignment = 64;  // what XLA's CPU plugins want for use in place

struct Block {
  size_t bytes;
  int holds = 0;  // copies on their way
  bool released = false;
};

struct Blocks {
  std::mutex mutex;
  std::map<uintptr_t, Block> live;            // by address
  std::array<std::vector<void*>, 64> cached;  // by the size's power of two
  at::HostStats stats;
};

Blocks& blocks() {
  static Blocks* instance = new Blocks;
  return *instance;
}

template <typename F>
auto timed(c10::CachingAllocator::DurationStat& stat, F&& f) {
  const auto start = std::chrono::steady_clock::now();
  auto result = f();
  stat.increase(std::chrono::duration_cast<std::chrono::microseconds>(
                    std::chrono::steady_clock::now() - start)
                    .count());
  return result;
}

// Keeps the block for later requests, once nobody uses it; the lock is held.
void cache_unused(Blocks& all, std::map<uintptr_t, Block>::iterator it) {
  if (!it->second.released || it->second.holds) return;
  const size_t bytes = it->second.bytes;
  all.stats.active_requests.decrease(1);
  all.stats.active_bytes.decrease(bytes);
  all.cached[std::countr_zero(bytes)].push_back(reinterpret_cast<void*>(it->first));
  all.live.erase(it);
}

void release(void* pointer) {
  if (!pointer) return;
  Blocks& all = blocks();
  std::lock_guard lock(all.mutex);
  auto it = all.live.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == all.live.end()) return;  // not ours, or released before
  it->second.released = true;
  cache_unused(all, it);
}

// The live block that an address lies in; the lock is held.
std::map<uintptr_t, Block>::iterator containing(Blocks& all, const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto after = all.live.upper_bound(address);
  if (after == all.live.begin()) return all.live.end();
  auto it = std::prev(after);
  return address < it->first + it->second.bytes ? it : all.live.end();
}

// Frees all cached blocks; the lock is held.
void drop_cached(Blocks& all) {
  for (size_t power = 0; power < all.cached.size(); ++power) {
    for (void* pointer : std::exchange(all.cached[power], {})) {
      timed(all.stats.host_free_time, [&] {
        std::free(pointer);
        return 0;
      });
      all.stats.allocations.decrease(1);
      all.stats.allocated_bytes.decrease(size_t{1} << power);
      ++all.stats.num_host_free;
    }
  }
}

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (!bytes) return {nullptr, nullptr, &release, cpu};
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= size_t{1} << 62, "cannot allocate ", bytes,
                     " bytes of pinned host memory");
    const size_t rounded = std::bit_ceil(std::max(bytes, kAlignment));
    Blocks& all = blocks();
    std::lock_guard lock(all.mutex);
    std::vector<void*>& cached = all.cached[std::countr_zero(rounded)];
    void* pointer = nullptr;
    if (!cached.empty()) {
      pointer = cached.back();
      cached.pop_back();
    } else {
      auto take = [&] { return std::aligned_alloc(kAlignment, rounded); };
      pointer = timed(all.stats.host_alloc_time, take);
      if (!pointer) {
        drop_cached(all);
        pointer = timed(all.stats.host_alloc_time, take);
      }
      TORCH_CHECK_WITH(OutOfMemoryError, pointer, "cannot allocate ", bytes,
                       " bytes of pinned host memory");
      all.stats.allocations.increase(1);
      all.stats.allocated_bytes.increase(rounded);
      ++all.stats.num_host_alloc;
    }
    all.stats.active_requests.increase(1);
    all.stats.active_bytes.increase(rounded);
    all.live.emplace(reinterpret_cast<uintptr_t>(pointer), Block{rounded});
    return {pointer, pointer, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }

  // A copy that is on its way holds the tensor, so nothing must be remembered here.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {
    std::lock_guard lock(blocks().mutex);
    drop_cached(blocks());
  }
  at::HostStats get_stats() override {
    std::lock_guard lock(blocks().mutex);
    return blocks().stats;
  }
  void reset_accumulated_stats() override {
    std::lock_guard lock(blocks().mutex);
    at::HostStats& stats = blocks().stats;
    for (auto* stat : {&stats.active_requests, &stats.active_bytes, &stats.allocations,
                       &stats.allocated_bytes}) {
      stat->reset_accumulated();
    }
    stats.num_host_alloc = stats.num_host_free = 0;
    stats.host_alloc_time.reset_accumulated();
    stats.host_free_time.reset_accumulated();
  }
  void reset_peak_stats() override {
    std::lock_guard lock(blocks().mutex);
    at::HostStats& stats = blocks().stats;
    for (auto* stat : {&stats.active_requests, &stats.active_bytes, &stats.allocations,
                       &stats.allocated_bytes}) {
      stat->reset_peak();
    }
    stats.host_alloc_time.reset_peak();
    stats.host_free_time.reset_peak();
  }
};

PinnedAllocator g_allocator;
REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &g_allocator);

}  // namespace

at::HostAllocator* pinned_allocator() { return &g_allocator; }

bool is_pinned(const void* pointer) {
  std::lock_guard lock(blocks().mutex);
  return containing(blocks(), pointer) != blocks().live.end();
}

std::shared_ptr<void> hold_pinned(const void* pointer) {
  Blocks& all = blocks();
  std::lock_guard lock(all.mutex);
  auto it = containing(all, pointer);
  if (it == all.live.end()) return nullptr;
  ++it->second.holds;
  return {reinterpret_cast<void*>(it->first), [](void* start) {
            Blocks& all = blocks();
            std::lock_guard lock(all.mutex);
            auto held = all.live.find(reinterpret_cast<uintptr_t>(start));
            --held->second.holds;
            cache_unused(all, held);
          }};
}

}  // namespace tn::torch_glue
