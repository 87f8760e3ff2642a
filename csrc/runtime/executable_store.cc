#include "runtime/executable_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/kernel.h"

namespace tn {
namespace {
// What an executable costs beyond its code: symbols, thunks, the client's bookkeeping. Measured for
// softmax of a few elements on the CPU plugin: 0.75 MB where it was compiled in this process, 0.3
// MB where it was loaded from the disk, and 17 mappings of the 65,530 that Linux gives a process.
constexpr size_t kFixedBytes = 700 << 10;
size_t cost(size_t code_bytes) { return code_bytes + kFixedBytes; }
}  // namespace

void ExecutableStore::configure(size_t limit_bytes, Loader loader) {
  std::lock_guard lock(mutex_);
  limit_bytes_ = limit_bytes;
  loader_ = std::move(loader);
}

void ExecutableStore::inserted(Kernel* kernel) {
  std::lock_guard lock(mutex_);
  if (!resident_.insert(kernel).second) return;
  resident_bytes_ += cost(kernel->executable_bytes_);
  if (resident_bytes_ > limit_bytes_) evict_locked(kernel);
}

void ExecutableStore::evict_locked(Kernel* keep) {
  // Down to nine tenths, so that a full store does not sort at every insertion.
  std::vector<std::pair<uint64_t, Kernel*>> order;
  order.reserve(resident_.size());
  for (Kernel* k : resident_) {
    std::lock_guard lock(k->mutex_);
    if (k != keep) order.emplace_back(k->last_use_, k);
  }
  std::sort(order.begin(), order.end());
  for (auto [use, k] : order) {
    if (resident_bytes_ <= limit_bytes_ / 10 * 9) break;
    std::shared_ptr<Executable> dropped;  // destroyed after the kernel's lock is gone
    {
      std::lock_guard lock(k->mutex_);
      dropped = std::move(k->executable_);
      k->executable_ = nullptr;
    }
    resident_.erase(k);
    resident_bytes_ -= cost(k->executable_bytes_);
    ++evictions_;
  }
}

Result<std::shared_ptr<Executable>> ExecutableStore::reload(Kernel& kernel) {
  Loader loader;
  {
    std::lock_guard lock(mutex_);
    ++reloads_;
    loader = loader_;
  }
  return loader(kernel.reload_key_);
}

StoreStats ExecutableStore::stats() const {
  std::lock_guard lock(mutex_);
  return {resident_.size(), resident_bytes_, limit_bytes_, evictions_, reloads_};
}

}  // namespace tn
