#include "torch/adaptive.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "runtime/recorder.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

std::atomic<EagerMode> g_mode{EagerMode::kPerOp};

std::function<void(Device&)>& fuser() {
  static auto* instance = new std::function<void(Device&)>;
  return *instance;
}

std::function<void(Device&)>& batcher() {
  static auto* instance = new std::function<void(Device&)>;
  return *instance;
}

}  // namespace

EagerMode eager_mode() { return g_mode.load(std::memory_order_relaxed); }

void set_eager_mode(EagerMode mode) {
  g_mode.store(mode, std::memory_order_relaxed);
  if (!is_started() || in_bad_fork()) return;
  Runtime& rt = runtime();
  ReleaseGil no_gil;
  std::unique_lock lock(rt.mutex);
  for (int i = 0; i < rt.num_devices(); ++i) rt.device(i).recorder().flush(Flush::kOff);
}

void set_fuser(std::function<void(Device&)> f) { fuser() = std::move(f); }

void fuse(Device& device) { fuser()(device); }

void set_batcher(std::function<void(Device&)> f) {
  batcher() = std::move(f);
  set_batch_starter(&compile_batches);
}

void compile_batches(Device& device) { batcher()(device); }

}  // namespace tn::torch_glue
