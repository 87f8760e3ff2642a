// A device's address space: a reserved, inaccessible range that segments are cut from.
//
// The plugin owns the bytes; the arena gives every storage an address that is unique, stable for
// its life, and faults when host code dereferences it (decision D5).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/status.h"

namespace tn {

// Ranges, placed first fit. Not thread-safe: its segment allocator's mutex guards it, except
// `contains`.
class Arena {
 public:
  // All ranges are multiples of it, and so aligned to it.
  static constexpr size_t kGranule = 256;

  // Reserves `capacity_bytes` of address space (no memory).
  static Result<std::unique_ptr<Arena>> reserve(size_t capacity_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  size_t capacity() const { return capacity_; }
  bool contains(uintptr_t address) const { return address >= base_ && address < base_ + capacity_; }

  // The start of a free range that now belongs to the caller; 0 when none is long enough.
  uintptr_t take(size_t bytes);
  void give_back(uintptr_t address, size_t bytes);
  size_t largest_free_range() const;

  // What stands for the granule at an address of this arena; null until it is set.
  void*& entry(uintptr_t address) const { return entries_[(address - base_) / kGranule]; }

 private:
  Arena(uintptr_t base, size_t capacity, void** entries);

  const uintptr_t base_;
  const size_t capacity_;
  void** const entries_;  // by granule; pages that nobody touched cost nothing
  std::map<uintptr_t, size_t> free_;
};

}  // namespace tn
