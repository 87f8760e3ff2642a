// The caching segment allocator: where tensors would lie on the target (decision D7).
//
// It takes segments from the arena and places requests in them as blocks. Two pools: requests below
// 1 MiB, and the others. Below 16 MiB a request is rounded up to a size class (eight to a doubling,
// 256 bytes at least), from 16 MiB on it gets a segment of its own size unless a free block fits.
// Freed blocks wait in a bin of their size class and are merged with their neighbours only when a
// bin and the merged blocks cannot serve a request, before a segment is taken. Segments go back
// when memory runs out or the user asks. The capacity limits what segments hold together; addresses
// are plenty, so a segment is never refused because free memory lies in pieces between others.
//
// All streams share the pools: they are multiplexed on one queue (decision D11), so a block is free
// in the order of issue.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "runtime/arena.h"
#include "runtime/memory_history.h"
#include "runtime/memory_stats.h"

namespace tn {

struct Segment;

// A piece of a segment. Whoever allocated it may read it and set its owner.
struct Block {
  uintptr_t address = 0;
  size_t bytes = 0;      // a multiple of Arena::kGranule
  size_t requested = 0;  // what was asked for
  size_t counted = 0;    // what it counts for: the size class, or what was asked for
  Segment* segment = nullptr;
  Block* before = nullptr;  // neighbours in the segment
  Block* after = nullptr;
  Block* next_in_bin = nullptr;
  enum class State : uint8_t {
    kFree,    // merged, in its pool's set
    kBinned,  // free, in the bin of its size class
    kInUse,
    kAwaitingFree,  // its tensor is gone, launches that wait still use it
  } state = State::kFree;
  std::atomic<void*> owner{nullptr};  // settable: who an address belongs to
  uint32_t origin = 0;                // the caller's number for who asked
  StackContext context;
};

struct Segment {
  uintptr_t address = 0;
  size_t bytes = 0;
  Pool pool = Pool::kSmall;
  Block* first = nullptr;
  size_t num_blocks = 0;
  size_t num_allocated = 0;
  size_t allocated_bytes = 0;  // of blocks, not what they count for
  StackContext context;
};

// Thread-safe.
class SegmentAllocator {
 public:
  static constexpr size_t kSmallLimit = size_t{1} << 20;   // from here on: the large pool
  static constexpr size_t kClassLimit = size_t{16} << 20;  // from here on: not rounded
  static constexpr size_t kSmallSegment = size_t{2}
                                          << 20;  // also what large segments are rounded to
  static constexpr size_t kLargeSegment = size_t{32} << 20;
  static constexpr size_t kNumBins = 113;  // by size class; the last: 1 MiB in the small pool

  static Result<std::unique_ptr<SegmentAllocator>> create(size_t capacity_bytes);
  ~SegmentAllocator();

  // A block for `bytes` > 0; null when none fits even after cached segments were given back. The
  // caller then frees what it can, tries again, and reports with `note_out_of_memory`.
  Block* allocate(size_t bytes, StackContext context = nullptr, uint32_t origin = 0);
  // The block's tensor is gone; something may still use the block. `context`: who dropped it.
  void deactivate(Block* block, const StackContext& context);
  void release(Block* block);
  // Counts a launch's temporaries, which are free again for the next launch. False: out of memory.
  bool charge_temporaries(size_t bytes);
  // A request that failed will be made again: the caller freed what it could.
  void note_retry();
  void note_out_of_memory(size_t bytes, StackContext context);
  // Gives back all segments that hold nothing.
  void empty_cache();

  // Who the block that starts at an address belongs to; null for any other address.
  void* owner(uintptr_t address) const;
  bool contains(uintptr_t address) const { return arena_->contains(address); }
  void set_origin(Block* block, uint32_t origin);

  size_t capacity() const { return capacity_; }
  // At most this part of the capacity, in 0 to 1, is reserved.
  void set_fraction(double fraction);
  double fraction() const;
  size_t limit() const;
  // Not reserved: capacity, or what other processes would see.
  size_t free_bytes() const;
  // The longest piece that a request could get.
  size_t largest_free() const;
  MemoryStats stats() const;
  void reset_peak();
  void reset_accumulated();

  // The state of everything: f(segment) in order of address, blocks in `first`, `after`.
  template <typename F>
  void for_each_segment(F&& f) const {
    std::lock_guard lock(mutex_);
    for (const auto& [address, segment] : segments_) f(*segment);
  }
  std::vector<MemoryEvent> history() const;
  void clear_history();
  void note_snapshot();

 private:
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
    }
  };

  SegmentAllocator(std::unique_ptr<Arena> arena, size_t capacity_bytes);
  Block* from_set(size_t bytes, Pool pool);
  Block* from_new_segment(size_t bytes, Pool pool, const StackContext& context);
  bool take_segment(size_t bytes, Pool pool, const StackContext& context);
  Block* cut(Block* block, size_t bytes);
  void merge(Block* block);
  void flush_bins();
  bool give_back_free_segments();
  void take_block(Block* block, size_t requested, size_t counted);
  void return_block(Block* block);

  mutable std::mutex mutex_;
  const std::unique_ptr<Arena> arena_;
  const size_t capacity_;  // of the device; the arena has more addresses
  size_t limit_;
  double fraction_ = 1.0;
  std::map<uintptr_t, std::unique_ptr<Segment>> segments_;
  std::array<std::set<Block*, BySize>, 3> free_;  // by pool; the first is not used
  std::array<Block*, kNumBins> bins_{};
  MemoryStats stats_;
  MemoryHistory history_;
};

}  // namespace tn
