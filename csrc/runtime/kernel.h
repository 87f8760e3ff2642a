// A kernel: an executable with what a launch must know about it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "pjrt/executable.h"
#include "runtime/storage.h"

namespace tn {

class ExecutableStore;

// An index check that the executable makes: what to raise, with {value} in the text.
struct IndexCheck {
  std::string exception;
  std::string message;
};

enum class KernelState : int { kPending, kReady, kFailed };

// What the executable takes and gives.
struct KernelSignature {
  // Launch parameters in argument order; the two after the last are RNG seed and offset.
  std::vector<int32_t> kept;
  // Launch parameters whose storage gets a new buffer, in result order after the outputs.
  std::vector<int32_t> writes;
  // Launch parameters whose buffer it may overwrite, if nobody needs it any more.
  std::vector<int32_t> donated = {};
  // Not empty: the last result is the error word.
  std::vector<IndexCheck> checks;
};

// Created pending; becomes ready or failed once. Thread-safe.
class Kernel {
 public:
  explicit Kernel(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  // The operator with the types and shapes of its arguments, for errors; the name until it is set,
  // which must happen before the first launch.
  const std::string& description() const { return description_.empty() ? name_ : description_; }
  void set_description(std::string text) { description_ = std::move(text); }
  // Whether it may be part of a fused sequence: it is an operator with its program at hand. Set
  // before the first launch.
  bool fusible() const { return fusible_; }
  void set_fusible() { fusible_ = true; }
  // What a kernel that nobody compiles yet would be: what the store's loader gets, and `writes` of
  // its signature. It has no checks, compiles quickly beside others, and becomes part of a batch or
  // is claimed. Set before the first launch.
  struct Deferral {
    std::string reload_key;
    std::vector<int32_t> writes;
  };
  void defer(Deferral deferral) {
    mark_ = hash_bytes(deferral.reload_key);
    deferral_ = std::move(deferral);
  }
  bool deferred() const {
    return deferral_ && state() == KernelState::kPending &&
           !claimed_.load(std::memory_order_acquire);
  }
  // Whoever is about to compile a deferred kernel by itself asks here; true once.
  bool claim() { return deferral_ && !claimed_.exchange(true, std::memory_order_acq_rel); }
  // Whether it was deferred once; then `mark` is the same number for the same program anywhere.
  bool may_batch() const { return deferral_.has_value(); }
  uint64_t mark() const { return mark_; }
  // What the store's loader gets; valid when ready or deferred.
  const std::string& reload_key() const { return deferral_ ? deferral_->reload_key : reload_key_; }
  // Launch parameters whose storage gets a new buffer; valid when ready or deferred.
  const std::vector<int32_t>& writes() const {
    return deferral_ ? deferral_->writes : signature_.writes;
  }
  KernelState state() const { return state_.load(std::memory_order_acquire); }
  // Valid when ready.
  const KernelSignature& signature() const { return signature_; }
  // Valid when failed: what to raise.
  const std::string& error() const { return error_; }
  // What a launch needs besides arguments and results, as far as the plugin says. Valid when ready.
  size_t temporary_bytes() const { return temporary_bytes_; }

  // `reload_key` is what the store's loader gets when the executable was evicted, `bytes` what it
  // counts for meanwhile (plugins do not say: the size of its serialized form).
  void set_ready(KernelSignature signature, std::shared_ptr<Executable> executable, size_t bytes,
                 ExecutableStore* store, std::string reload_key);
  void set_failed(std::string error);
  // Blocks up to `seconds`; true when no longer pending.
  bool wait(double seconds) const;

  // The executable, or null when it was evicted. Only when ready; never blocks for long.
  std::shared_ptr<Executable> resident();
  // Loads it again. May take the interpreter's lock: call without holding the device's.
  Status reload();

 private:
  friend class ExecutableStore;

  const std::string name_;
  std::string description_;
  bool fusible_ = false;
  std::optional<Deferral> deferral_;
  std::atomic<bool> claimed_{false};
  uint64_t mark_ = 0;
  std::atomic<KernelState> state_{KernelState::kPending};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  KernelSignature signature_;
  std::string error_;
  std::shared_ptr<Executable> executable_;
  ExecutableStore* store_ = nullptr;
  std::string reload_key_;
  uint64_t last_use_ = 0;
  size_t executable_bytes_ = 0;
  size_t temporary_bytes_ = 0;
};

}  // namespace tn
