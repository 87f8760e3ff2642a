#include "runtime/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

namespace tn {
namespace {
constexpr size_t kGranule = 512;
constexpr size_t kRecentLimit = size_t{1} << 20;  // larger blocks are coalesced at once

size_t owners_bytes(size_t capacity) { return (capacity / kGranule + 1) * sizeof(void*); }
}  // namespace

Result<std::unique_ptr<Arena>> Arena::reserve(size_t capacity_bytes) {
  void* base =
      mmap(nullptr, capacity_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Status(StatusCode::kResourceExhausted,
                  "cannot reserve " + std::to_string(capacity_bytes) +
                      " bytes of address space: " + std::strerror(errno));
  }
  void* owners = mmap(nullptr, owners_bytes(capacity_bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (owners == MAP_FAILED) {
    munmap(base, capacity_bytes);
    return Status(StatusCode::kResourceExhausted,
                  std::string("cannot reserve the table of owners: ") + std::strerror(errno));
  }
  return std::unique_ptr<Arena>(
      new Arena(reinterpret_cast<uintptr_t>(base), capacity_bytes, static_cast<void**>(owners)));
}

Arena::Arena(uintptr_t base, size_t capacity, void** owners)
    : base_(base), capacity_(capacity), owners_(owners) {
  free_.emplace(base, capacity);
  stats_.capacity_bytes = capacity;
}

Arena::~Arena() {
  munmap(reinterpret_cast<void*>(base_), capacity_);
  munmap(owners_, owners_bytes(capacity_));
}

void Arena::set_owner(uintptr_t address, void* owner) {
  owners_[(address - base_) / kGranule] = owner;
}

void* Arena::owner(uintptr_t address) const {
  return contains(address) && (address - base_) % kGranule == 0
             ? owners_[(address - base_) / kGranule]
             : nullptr;
}

size_t Arena::rounded(size_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

uintptr_t Arena::carve(size_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < bytes) continue;
    const uintptr_t address = it->first;
    const size_t rest = it->second - bytes;
    free_.erase(it);
    if (rest) free_.emplace(address + bytes, rest);
    return address;
  }
  return 0;
}

void Arena::insert_free(uintptr_t address, size_t bytes) {
  auto next = free_.lower_bound(address);
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == address) {
      address = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && address + bytes == next->first) {
    bytes += next->second;
    free_.erase(next);
  }
  free_.emplace(address, bytes);
}

void Arena::flush_recent() {
  for (auto& [bytes, addresses] : recent_) {
    for (uintptr_t address : addresses) insert_free(address, bytes);
  }
  recent_.clear();
}

Result<uintptr_t> Arena::allocate(size_t requested) {
  const size_t bytes = rounded(requested);
  std::lock_guard lock(mutex_);
  uintptr_t address = 0;
  if (auto it = recent_.find(bytes); it != recent_.end() && !it->second.empty()) {
    address = it->second.back();
    it->second.pop_back();
  } else {
    address = carve(bytes);
    if (!address) {
      flush_recent();
      address = carve(bytes);
    }
  }
  if (!address) {
    return Status(StatusCode::kResourceExhausted,
                  "no free range of " + std::to_string(bytes) + " bytes");
  }
  stats_.allocated_bytes += bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.allocated_bytes);
  ++stats_.num_allocations;
  return address;
}

void Arena::release(uintptr_t address, size_t requested) {
  const size_t bytes = rounded(requested);
  std::lock_guard lock(mutex_);
  if (bytes <= kRecentLimit) {
    recent_[bytes].push_back(address);
  } else {
    insert_free(address, bytes);
  }
  stats_.allocated_bytes -= bytes;
  ++stats_.num_frees;
}

ArenaStats Arena::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Arena::reset_peak() {
  std::lock_guard lock(mutex_);
  stats_.peak_bytes = stats_.allocated_bytes;
}

size_t Arena::largest_free_range() const {
  std::lock_guard lock(mutex_);
  size_t largest = 0;
  for (const auto& [address, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace tn
