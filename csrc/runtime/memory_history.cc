#include "runtime/memory_history.h"

#include <chrono>
#include <mutex>
#include <utility>

namespace tn {
namespace {

std::mutex g_mutex;  // guards what changes rarely: options and metadata
MemoryRecording g_recording;
std::string g_metadata;

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

const char* memory_action_name(MemoryAction action) {
  switch (action) {
    case MemoryAction::kAlloc:
      return "alloc";
    case MemoryAction::kFreeRequested:
      return "free_requested";
    case MemoryAction::kFreeCompleted:
      return "free_completed";
    case MemoryAction::kSegmentAlloc:
      return "segment_alloc";
    case MemoryAction::kSegmentFree:
      return "segment_free";
    case MemoryAction::kSnapshot:
      return "snapshot";
    case MemoryAction::kOutOfMemory:
      return "oom";
  }
  return "";
}

MemoryRecording memory_recording() {
  std::lock_guard lock(g_mutex);
  return g_recording;
}

void set_memory_recording(const MemoryRecording& recording) {
  std::lock_guard lock(g_mutex);
  g_recording = recording;
  recording_memory_flag().store(recording.enabled, std::memory_order_relaxed);
}

StackContext gather_stack(RecordStacks level) {
  if (!is_recording_memory()) return nullptr;
  const MemoryRecording recording = memory_recording();
  return recording.gather && recording.stacks >= level ? recording.gather() : nullptr;
}

void set_memory_metadata(std::string text) {
  std::lock_guard lock(g_mutex);
  g_metadata = std::move(text);
}

std::string memory_metadata() {
  std::lock_guard lock(g_mutex);
  return g_metadata;
}

void MemoryHistory::add(MemoryAction action, uintptr_t address, size_t bytes,
                        StackContext context) {
  const MemoryRecording recording = memory_recording();
  if (!recording.enabled || !recording.events || recording.max_events == 0 ||
      recording.skipped >> static_cast<int>(action) & 1) {
    return;
  }
  MemoryEvent event{action, address, bytes, now_us(), std::move(context), memory_metadata()};
  if (ring_.size() > recording.max_events) clear();
  if (ring_.size() < recording.max_events) {
    ring_.push_back(std::move(event));
    return;
  }
  if (next_ >= ring_.size()) next_ = 0;
  ring_[next_++] = std::move(event);
}

std::vector<MemoryEvent> MemoryHistory::events() const {
  const size_t oldest = next_ < ring_.size() ? next_ : 0;
  std::vector<MemoryEvent> ordered(ring_.begin() + static_cast<std::ptrdiff_t>(oldest),
                                   ring_.end());
  ordered.insert(ordered.end(), ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(oldest));
  return ordered;
}

void MemoryHistory::clear() {
  ring_.clear();
  next_ = 0;
}

}  // namespace tn
