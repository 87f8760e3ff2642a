// The recorded history of a device's memory: who allocated and freed what, and when.
//
// Recording is a process's choice, as in torch.cuda: off, it costs one relaxed load an allocation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tn {

enum class MemoryAction : uint8_t {
  kAlloc,
  kFreeRequested,  // the tensor is gone
  kFreeCompleted,  // the block can be used again
  kSegmentAlloc,
  kSegmentFree,
  kSnapshot,
  kOutOfMemory,
};
// PyTorch's name of an action in snapshots.
const char* memory_action_name(MemoryAction action);

// A stack as its gatherer knows it; this layer only keeps it.
using StackContext = std::shared_ptr<void>;

struct MemoryEvent {
  MemoryAction action;
  uintptr_t address;  // for kOutOfMemory: bytes that the device has free
  size_t bytes;
  int64_t time_us;  // since the epoch
  StackContext context;
  std::string metadata;  // the user's, see set_memory_metadata
};

// How much is kept; each level includes those before it.
enum class RecordStacks : uint8_t { kNever, kState, kAlloc, kAll };

struct MemoryRecording {
  bool enabled = false;
  bool events = false;  // keep the history, not only the stacks of live blocks
  RecordStacks stacks = RecordStacks::kNever;
  size_t max_events = 0;
  uint32_t skipped = 0;  // bit by MemoryAction
  StackContext (*gather)() = nullptr;
};

// The process's recording. Thread-safe.
MemoryRecording memory_recording();
void set_memory_recording(const MemoryRecording& recording);
inline std::atomic<bool>& recording_memory_flag() {
  static std::atomic<bool> flag{false};
  return flag;
}
inline bool is_recording_memory() {
  return recording_memory_flag().load(std::memory_order_relaxed);
}
// The stack of this moment if recording wants stacks at `level`, else null. Takes the interpreter's
// lock: call without holding the runtime's.
StackContext gather_stack(RecordStacks level);

// Text that following events of this process carry.
void set_memory_metadata(std::string text);
std::string memory_metadata();

// A ring of the newest events. Not thread-safe: the allocator's mutex guards it.
class MemoryHistory {
 public:
  void add(MemoryAction action, uintptr_t address, size_t bytes, StackContext context);
  // Oldest first.
  std::vector<MemoryEvent> events() const;
  void clear();

 private:
  std::vector<MemoryEvent> ring_;
  size_t next_ = 0;  // the oldest, once the ring is full
};

}  // namespace tn
