#include "runtime/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

namespace tn {
namespace {

size_t entries_bytes(size_t capacity) { return (capacity / Arena::kGranule + 1) * sizeof(void*); }

}  // namespace

Result<std::unique_ptr<Arena>> Arena::reserve(size_t capacity_bytes) {
  void* base =
      mmap(nullptr, capacity_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Status(StatusCode::kResourceExhausted,
                  "cannot reserve " + std::to_string(capacity_bytes) +
                      " bytes of address space: " + std::strerror(errno));
  }
  void* entries = mmap(nullptr, entries_bytes(capacity_bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (entries == MAP_FAILED) {
    munmap(base, capacity_bytes);
    return Status(StatusCode::kResourceExhausted,
                  std::string("cannot reserve the table of blocks: ") + std::strerror(errno));
  }
  return std::unique_ptr<Arena>(
      new Arena(reinterpret_cast<uintptr_t>(base), capacity_bytes, static_cast<void**>(entries)));
}

Arena::Arena(uintptr_t base, size_t capacity, void** entries)
    : base_(base), capacity_(capacity), entries_(entries) {
  free_.emplace(base, capacity);
}

Arena::~Arena() {
  munmap(reinterpret_cast<void*>(base_), capacity_);
  munmap(entries_, entries_bytes(capacity_));
}

uintptr_t Arena::take(size_t bytes) {
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

void Arena::give_back(uintptr_t address, size_t bytes) {
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

size_t Arena::largest_free_range() const {
  size_t largest = 0;
  for (const auto& [address, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace tn
