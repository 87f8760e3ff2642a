// What the segment allocator counts; names and meaning are torch.cuda's where it has them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace tn {

// A quantity: what it is now, was at most, and all that was ever added and taken.
struct MemoryStat {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;
  int64_t freed = 0;

  void increase(int64_t amount) {
    current += amount;
    allocated += amount;
    if (current > peak) peak = current;
  }
  void decrease(int64_t amount) {
    current -= amount;
    freed += amount;
  }
};

enum class Pool : uint8_t { kAll = 0, kSmall = 1, kLarge = 2 };

// By pool, in the order of Pool (which is that of c10's StatType).
struct MemoryStatByPool {
  std::array<MemoryStat, 3> pools;

  void increase(Pool pool, int64_t amount) {
    pools[0].increase(amount);
    pools[static_cast<size_t>(pool)].increase(amount);
  }
  void decrease(Pool pool, int64_t amount) {
    pools[0].decrease(amount);
    pools[static_cast<size_t>(pool)].decrease(amount);
  }
  const MemoryStat& all() const { return pools[0]; }
};

// reserved >= allocated >= active: a block counts as allocated until it can be used again, and as
// active until its tensor is gone. Both are the same but while launches wait for a compile.
struct MemoryStats {
  MemoryStatByPool allocation;  // counts of blocks
  MemoryStatByPool active;
  MemoryStatByPool segment;
  MemoryStatByPool inactive_split;
  MemoryStatByPool allocated_bytes;
  MemoryStatByPool active_bytes;
  MemoryStatByPool requested_bytes;
  MemoryStatByPool reserved_bytes;
  MemoryStatByPool inactive_split_bytes;
  MemoryStatByPool temporary_bytes;  // executables' temporaries; part of allocated_bytes
  int64_t num_alloc_retries = 0;     // requests tried again after memory was freed
  int64_t num_ooms = 0;
  int64_t num_device_alloc = 0;  // segments made
  int64_t num_device_free = 0;

  // Calls f(name, stat) for every quantity.
  template <typename Self, typename F>
  static void for_each(Self& self, F&& f) {
    f("allocation", self.allocation);
    f("active", self.active);
    f("segment", self.segment);
    f("inactive_split", self.inactive_split);
    f("allocated_bytes", self.allocated_bytes);
    f("active_bytes", self.active_bytes);
    f("requested_bytes", self.requested_bytes);
    f("reserved_bytes", self.reserved_bytes);
    f("inactive_split_bytes", self.inactive_split_bytes);
    f("temporary_bytes", self.temporary_bytes);
  }
  void reset_peak() {
    for_each(*this, [](const char*, MemoryStatByPool& by_pool) {
      for (MemoryStat& stat : by_pool.pools) stat.peak = stat.current;
    });
  }
  void reset_accumulated() {
    for_each(*this, [](const char*, MemoryStatByPool& by_pool) {
      for (MemoryStat& stat : by_pool.pools) stat.allocated = stat.freed = 0;
    });
    num_alloc_retries = num_ooms = num_device_alloc = num_device_free = 0;
  }
};

}  // namespace tn
