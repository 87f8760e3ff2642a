#include "runtime/kernel.h"

#include <chrono>
#include <utility>

#include "runtime/executable_store.h"

namespace tn {

void Kernel::set_ready(KernelSignature signature, std::shared_ptr<Executable> executable,
                       size_t bytes, ExecutableStore* store, std::string reload_key) {
  const Result<CompiledMemoryStats> memory = executable->memory_stats();
  {
    std::lock_guard lock(mutex_);
    signature_ = std::move(signature);
    executable_bytes_ = bytes;
    if (memory.ok() && memory->temp_bytes > 0) {
      temporary_bytes_ = static_cast<size_t>(memory->temp_bytes);
    }
    executable_ = std::move(executable);
    store_ = store;
    last_use_ = store->tick();  // not launched yet, and so the last that should be evicted
    reload_key_ = std::move(reload_key);
    state_.store(KernelState::kReady, std::memory_order_release);
  }
  changed_.notify_all();
  store->inserted(this);
}

void Kernel::set_failed(std::string error) {
  {
    std::lock_guard lock(mutex_);
    error_ = std::move(error);
    state_.store(KernelState::kFailed, std::memory_order_release);
  }
  changed_.notify_all();
}

bool Kernel::wait(double seconds) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return state() != KernelState::kPending; });
}

std::shared_ptr<Executable> Kernel::resident() {
  std::lock_guard lock(mutex_);
  if (executable_) last_use_ = store_->tick();
  return executable_;
}

Status Kernel::reload() {
  TN_ASSIGN_OR_RETURN(std::shared_ptr<Executable> executable, store_->reload(*this));
  {
    std::lock_guard lock(mutex_);
    executable_ = std::move(executable);
    last_use_ = store_->tick();
  }
  store_->inserted(this);
  return Status();
}

}  // namespace tn
