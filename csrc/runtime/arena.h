// A device's address space: a reserved, inaccessible range that storages get addresses from.
//
// The plugin owns the bytes; the arena models where they would lie on the target (decision D7) and
// gives every storage an address that is unique, stable for its life, and faults when host code
// dereferences it (decision D5). Placement is first fit over coalesced free ranges, with a stack of
// recently freed blocks a size class in front of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace tn {

struct ArenaStats {
  size_t allocated_bytes = 0;
  size_t peak_bytes = 0;
  size_t capacity_bytes = 0;
  uint64_t num_allocations = 0;
  uint64_t num_frees = 0;
};

// Thread-safe.
class Arena {
 public:
  // Reserves `capacity_bytes` of address space (no memory).
  static Result<std::unique_ptr<Arena>> reserve(size_t capacity_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // An address for `bytes` > 0; resource_exhausted when no range fits.
  Result<uintptr_t> allocate(size_t bytes);
  void release(uintptr_t address, size_t bytes);

  bool contains(uintptr_t address) const { return address >= base_ && address < base_ + capacity_; }
  // Who an allocated address belongs to; null for any other. The caller's to set and to clear.
  void set_owner(uintptr_t address, void* owner);
  void* owner(uintptr_t address) const;
  ArenaStats stats() const;
  void reset_peak();
  size_t largest_free_range() const;

 private:
  Arena(uintptr_t base, size_t capacity, void** owners);
  static size_t rounded(size_t bytes);
  uintptr_t carve(size_t bytes);
  void insert_free(uintptr_t address, size_t bytes);
  void flush_recent();

  const uintptr_t base_;
  const size_t capacity_;
  void** const owners_;  // by granule; pages that nobody touched cost nothing
  mutable std::mutex mutex_;
  std::map<uintptr_t, size_t> free_;
  std::unordered_map<size_t, std::vector<uintptr_t>> recent_;
  ArenaStats stats_;
};

}  // namespace tn
