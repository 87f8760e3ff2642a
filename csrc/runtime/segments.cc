#include "runtime/segments.h"

#include <bit>
#include <utility>

namespace tn {
namespace {

constexpr size_t kGranule = Arena::kGranule;
// Addresses for each byte of memory: a range that is free among live segments may be too short for
// a request that the memory has room for, and segments do not move.
constexpr size_t kAddressesPerByte = 4;
constexpr size_t kFirstClasses = 8;  // 256, 512, ... 2048; then eight to a doubling

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct SizeClass {
  size_t bytes;
  size_t bin;
};

// The class of a size up to 16 MiB.
SizeClass class_of(size_t bytes) {
  if (bytes <= kFirstClasses * kGranule) {
    const size_t granules = bytes ? (bytes + kGranule - 1) / kGranule : 1;
    return {granules * kGranule, granules - 1};
  }
  // 2^p < bytes <= 2^(p+1), in steps of an eighth of 2^p.
  const int p = std::bit_width(bytes - 1) - 1;
  const int shift = p - 3;
  const size_t step = ((bytes - 1) >> shift) - 8;  // 0 to 7
  return {(step + 9) << shift, kFirstClasses + static_cast<size_t>(p - 11) * 8 + step};
}

// The class of a request below 16 MiB. One just below 1 MiB is rounded up to it and stays small.
SizeClass class_in(Pool pool, size_t bytes) {
  SizeClass size = class_of(bytes);
  if (pool == Pool::kSmall && size.bytes == SegmentAllocator::kSmallLimit) {
    size.bin = SegmentAllocator::kNumBins - 1;
  }
  return size;
}

}  // namespace

Result<std::unique_ptr<SegmentAllocator>> SegmentAllocator::create(size_t capacity_bytes) {
  TN_ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena,
                      Arena::reserve(capacity_bytes * kAddressesPerByte));
  return std::unique_ptr<SegmentAllocator>(new SegmentAllocator(std::move(arena), capacity_bytes));
}

SegmentAllocator::SegmentAllocator(std::unique_ptr<Arena> arena, size_t capacity_bytes)
    : arena_(std::move(arena)), capacity_(capacity_bytes), limit_(capacity_bytes) {}

SegmentAllocator::~SegmentAllocator() {
  for (auto& [address, segment] : segments_) {
    for (Block* block = segment->first; block;) delete std::exchange(block, block->after);
  }
}

void SegmentAllocator::take_block(Block* block, size_t requested, size_t counted) {
  Segment& segment = *block->segment;
  const Pool pool = segment.pool;
  block->state = Block::State::kInUse;
  block->requested = requested;
  block->counted = counted;
  const auto bytes = static_cast<int64_t>(block->bytes);
  if (segment.num_allocated++ == 0) {
    stats_.inactive_split.increase(pool, static_cast<int64_t>(segment.num_blocks) - 1);
    stats_.inactive_split_bytes.increase(pool, static_cast<int64_t>(segment.bytes) - bytes);
  } else {
    stats_.inactive_split.decrease(pool, 1);
    stats_.inactive_split_bytes.decrease(pool, bytes);
  }
  segment.allocated_bytes += block->bytes;
  stats_.allocation.increase(pool, 1);
  stats_.active.increase(pool, 1);
  stats_.allocated_bytes.increase(pool, static_cast<int64_t>(counted));
  stats_.active_bytes.increase(pool, static_cast<int64_t>(counted));
  stats_.requested_bytes.increase(pool, static_cast<int64_t>(requested));
}

void SegmentAllocator::return_block(Block* block) {
  Segment& segment = *block->segment;
  const Pool pool = segment.pool;
  const auto bytes = static_cast<int64_t>(block->bytes);
  segment.allocated_bytes -= block->bytes;
  if (--segment.num_allocated == 0) {
    stats_.inactive_split.decrease(pool, static_cast<int64_t>(segment.num_blocks) - 1);
    stats_.inactive_split_bytes.decrease(pool, static_cast<int64_t>(segment.bytes) - bytes);
  } else {
    stats_.inactive_split.increase(pool, 1);
    stats_.inactive_split_bytes.increase(pool, bytes);
  }
  stats_.allocation.decrease(pool, 1);
  stats_.allocated_bytes.decrease(pool, static_cast<int64_t>(block->counted));
  stats_.requested_bytes.decrease(pool, static_cast<int64_t>(block->requested));
  if (block->state == Block::State::kInUse) {
    stats_.active.decrease(pool, 1);
    stats_.active_bytes.decrease(pool, static_cast<int64_t>(block->counted));
  }
  if (block->bytes <= kClassLimit) {
    const SizeClass size = class_in(pool, block->bytes);
    if (size.bytes == block->bytes) {
      block->state = Block::State::kBinned;
      block->next_in_bin = std::exchange(bins_[size.bin], block);
      return;
    }
  }
  block->state = Block::State::kFree;
  merge(block);
}

// Splits `block`, which is in no set, and puts the rest into its pool's set.
Block* SegmentAllocator::cut(Block* block, size_t bytes) {
  if (block->bytes == bytes) return block;
  Segment& segment = *block->segment;
  auto* rest = new Block;
  rest->address = block->address + bytes;
  rest->bytes = block->bytes - bytes;
  rest->segment = &segment;
  rest->before = block;
  rest->after = block->after;
  if (rest->after) rest->after->before = rest;
  block->after = rest;
  block->bytes = bytes;
  arena_->entry(rest->address) = rest;
  ++segment.num_blocks;
  if (segment.num_allocated) stats_.inactive_split.increase(segment.pool, 1);
  free_[static_cast<size_t>(segment.pool)].insert(rest);
  return block;
}

// Joins a free block that is in no set with its free neighbours, and puts it into its pool's set.
void SegmentAllocator::merge(Block* block) {
  Segment& segment = *block->segment;
  auto& set = free_[static_cast<size_t>(segment.pool)];
  auto swallow = [&](Block* left, Block* right) {
    left->bytes += right->bytes;
    left->after = right->after;
    if (left->after) left->after->before = left;
    arena_->entry(right->address) = nullptr;
    --segment.num_blocks;
    if (segment.num_allocated) stats_.inactive_split.decrease(segment.pool, 1);
    delete right;
  };
  if (Block* right = block->after; right && right->state == Block::State::kFree) {
    set.erase(right);
    swallow(block, right);
  }
  if (Block* left = block->before; left && left->state == Block::State::kFree) {
    set.erase(left);
    swallow(left, block);
    block = left;
  }
  set.insert(block);
}

void SegmentAllocator::flush_bins() {
  for (Block*& bin : bins_) {
    while (bin) {
      Block* block = std::exchange(bin, bin->next_in_bin);
      block->next_in_bin = nullptr;
      block->state = Block::State::kFree;
      merge(block);
    }
  }
}

Block* SegmentAllocator::from_set(size_t bytes, Pool pool) {
  auto& set = free_[static_cast<size_t>(pool)];
  Block wanted;
  wanted.bytes = bytes;
  auto it = set.lower_bound(&wanted);
  if (it == set.end()) return nullptr;
  Block* block = *it;
  set.erase(it);
  return cut(block, bytes);
}

bool SegmentAllocator::take_segment(size_t bytes, Pool pool, const StackContext& context) {
  const auto reserved = static_cast<size_t>(stats_.reserved_bytes.all().current);
  if (bytes > limit_ || reserved > limit_ - bytes) return false;
  const uintptr_t address = arena_->take(bytes);
  if (!address) return false;
  auto segment = std::make_unique<Segment>();
  segment->address = address;
  segment->bytes = bytes;
  segment->pool = pool;
  segment->num_blocks = 1;
  segment->context = context;
  auto* block = new Block;
  block->address = address;
  block->bytes = bytes;
  block->segment = segment.get();
  segment->first = block;
  arena_->entry(address) = block;
  free_[static_cast<size_t>(pool)].insert(block);
  segments_.emplace(address, std::move(segment));
  stats_.segment.increase(pool, 1);
  stats_.reserved_bytes.increase(pool, static_cast<int64_t>(bytes));
  ++stats_.num_device_alloc;
  if (is_recording_memory()) [[unlikely]] {
    history_.add(MemoryAction::kSegmentAlloc, address, bytes, context);
  }
  return true;
}

Block* SegmentAllocator::from_new_segment(size_t bytes, Pool pool, const StackContext& context) {
  const size_t exact = rounded(bytes, kSmallSegment);
  const size_t usual = pool == Pool::kSmall  ? kSmallSegment
                       : bytes < kClassLimit ? kLargeSegment
                                             : exact;
  if (take_segment(usual, pool, context)) return from_set(bytes, pool);
  // The last piece of the device may be shorter than a usual segment and long enough.
  for (size_t size : {exact, rounded(bytes, kGranule)}) {
    if (size < usual && take_segment(size, pool, context)) return from_set(bytes, pool);
  }
  return nullptr;
}

bool SegmentAllocator::give_back_free_segments() {
  flush_bins();
  bool any = false;
  for (auto it = segments_.begin(); it != segments_.end();) {
    Segment& segment = *it->second;
    if (segment.num_allocated) {
      ++it;
      continue;
    }
    // All free and merged: one block.
    Block* block = segment.first;
    free_[static_cast<size_t>(segment.pool)].erase(block);
    arena_->entry(block->address) = nullptr;
    delete block;
    arena_->give_back(segment.address, segment.bytes);
    stats_.segment.decrease(segment.pool, 1);
    stats_.reserved_bytes.decrease(segment.pool, static_cast<int64_t>(segment.bytes));
    ++stats_.num_device_free;
    if (is_recording_memory()) [[unlikely]] {
      history_.add(MemoryAction::kSegmentFree, segment.address, segment.bytes, nullptr);
    }
    it = segments_.erase(it);
    any = true;
  }
  return any;
}

Block* SegmentAllocator::allocate(size_t requested, StackContext context, uint32_t origin) {
  if (requested > capacity()) return nullptr;
  const bool classed = requested < kClassLimit;
  const Pool pool = requested < kSmallLimit ? Pool::kSmall : Pool::kLarge;
  const SizeClass size =
      classed ? class_in(pool, requested) : SizeClass{rounded(requested, kGranule), kNumBins};
  std::lock_guard lock(mutex_);
  Block* block = nullptr;
  if (classed && bins_[size.bin]) {
    block = bins_[size.bin];
    bins_[size.bin] = std::exchange(block->next_in_bin, nullptr);
  } else {
    block = from_set(size.bytes, pool);
    if (!block) {
      flush_bins();
      block = from_set(size.bytes, pool);
    }
    if (!block) block = from_new_segment(size.bytes, pool, context);
    if (!block && give_back_free_segments()) {
      ++stats_.num_alloc_retries;
      block = from_new_segment(size.bytes, pool, context);
    }
    if (!block) return nullptr;
  }
  take_block(block, requested, classed ? size.bytes : requested);
  block->origin = origin;
  if (is_recording_memory()) [[unlikely]] {
    block->context = context;
    history_.add(MemoryAction::kAlloc, block->address, block->counted,
                 memory_recording().stacks >= RecordStacks::kAlloc ? std::move(context) : nullptr);
  }
  return block;
}

void SegmentAllocator::deactivate(Block* block, const StackContext& context) {
  std::lock_guard lock(mutex_);
  if (block->state != Block::State::kInUse) return;
  block->state = Block::State::kAwaitingFree;
  stats_.active.decrease(block->segment->pool, 1);
  stats_.active_bytes.decrease(block->segment->pool, static_cast<int64_t>(block->counted));
  if (is_recording_memory()) [[unlikely]] {
    history_.add(MemoryAction::kFreeRequested, block->address, block->counted,
                 context ? context : block->context);
  }
}

void SegmentAllocator::release(Block* block) {
  std::lock_guard lock(mutex_);
  if (is_recording_memory()) [[unlikely]] {
    if (block->state == Block::State::kInUse) {
      history_.add(MemoryAction::kFreeRequested, block->address, block->counted, block->context);
    }
    history_.add(MemoryAction::kFreeCompleted, block->address, block->counted, block->context);
  }
  block->owner.store(nullptr, std::memory_order_relaxed);
  if (block->context) [[unlikely]]
    block->context = nullptr;
  return_block(block);
}

bool SegmentAllocator::charge_temporaries(size_t bytes) {
  Block* block = allocate(bytes);
  if (!block) return false;
  const Pool pool = block->segment->pool;
  const auto counted = static_cast<int64_t>(block->counted);
  {
    std::lock_guard lock(mutex_);
    stats_.temporary_bytes.increase(pool, counted);
    stats_.temporary_bytes.decrease(pool, counted);
  }
  release(block);
  return true;
}

void SegmentAllocator::note_retry() {
  std::lock_guard lock(mutex_);
  ++stats_.num_alloc_retries;
}

void SegmentAllocator::note_out_of_memory(size_t bytes, StackContext context) {
  std::lock_guard lock(mutex_);
  ++stats_.num_ooms;
  const size_t free = capacity_ - static_cast<size_t>(stats_.reserved_bytes.all().current);
  history_.add(MemoryAction::kOutOfMemory, free, bytes, std::move(context));
}

void SegmentAllocator::empty_cache() {
  std::lock_guard lock(mutex_);
  give_back_free_segments();
}

void* SegmentAllocator::owner(uintptr_t address) const {
  if (!contains(address) || address % kGranule) return nullptr;
  std::lock_guard lock(mutex_);
  const auto* block = static_cast<const Block*>(arena_->entry(address));
  return block ? block->owner.load(std::memory_order_relaxed) : nullptr;
}

void SegmentAllocator::set_origin(Block* block, uint32_t origin) {
  std::lock_guard lock(mutex_);
  block->origin = origin;
}

void SegmentAllocator::set_fraction(double fraction) {
  std::lock_guard lock(mutex_);
  fraction_ = fraction;
  limit_ = static_cast<size_t>(static_cast<double>(capacity_) * fraction);
}

double SegmentAllocator::fraction() const {
  std::lock_guard lock(mutex_);
  return fraction_;
}

size_t SegmentAllocator::limit() const {
  std::lock_guard lock(mutex_);
  return limit_;
}

size_t SegmentAllocator::free_bytes() const {
  std::lock_guard lock(mutex_);
  return capacity_ - static_cast<size_t>(stats_.reserved_bytes.all().current);
}

size_t SegmentAllocator::largest_free() const {
  std::lock_guard lock(mutex_);
  const auto reserved = static_cast<size_t>(stats_.reserved_bytes.all().current);
  size_t largest =
      std::min(arena_->largest_free_range(), limit_ > reserved ? limit_ - reserved : 0);
  for (const auto& [address, segment] : segments_) {
    size_t run = 0;  // neighbouring free blocks, merged or not
    for (const Block* block = segment->first; block; block = block->after) {
      const bool free =
          block->state == Block::State::kFree || block->state == Block::State::kBinned;
      run = free ? run + block->bytes : 0;
      largest = std::max(largest, run);
    }
  }
  return largest;
}

MemoryStats SegmentAllocator::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void SegmentAllocator::reset_peak() {
  std::lock_guard lock(mutex_);
  stats_.reset_peak();
}

void SegmentAllocator::reset_accumulated() {
  std::lock_guard lock(mutex_);
  stats_.reset_accumulated();
}

std::vector<MemoryEvent> SegmentAllocator::history() const {
  std::lock_guard lock(mutex_);
  return history_.events();
}

void SegmentAllocator::clear_history() {
  std::lock_guard lock(mutex_);
  history_.clear();
}

void SegmentAllocator::note_snapshot() {
  std::lock_guard lock(mutex_);
  history_.add(MemoryAction::kSnapshot, 0, 0, nullptr);
}

}  // namespace tn
