// Keeps the loaded executables within a bound: least recently used go first (decision D14).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "base/status.h"
#include "pjrt/executable.h"

namespace tn {

class Kernel;

struct StoreStats {
  size_t resident = 0;
  size_t resident_bytes = 0;
  size_t limit_bytes = 0;
  uint64_t evictions = 0;
  uint64_t reloads = 0;
};

// Thread-safe. Kernels are never destroyed, so raw pointers stay valid.
class ExecutableStore {
 public:
  using Loader = std::function<Result<std::shared_ptr<Executable>>(const std::string& reload_key)>;

  void configure(size_t limit_bytes, Loader loader);
  uint64_t tick() { return ticks_.fetch_add(1, std::memory_order_relaxed); }
  // `kernel` has become resident; evicts others when the bound is passed.
  void inserted(Kernel* kernel);
  Result<std::shared_ptr<Executable>> reload(Kernel& kernel);
  StoreStats stats() const;

 private:
  void evict_locked(Kernel* keep);

  mutable std::mutex mutex_;
  std::unordered_set<Kernel*> resident_;
  size_t resident_bytes_ = 0;
  size_t limit_bytes_ = size_t{512} << 20;
  uint64_t evictions_ = 0;
  uint64_t reloads_ = 0;
  Loader loader_;
  std::atomic<uint64_t> ticks_{0};
};

}  // namespace tn
