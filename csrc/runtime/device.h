// Devices: launching kernels, waiting for them, and the errors they leave behind.
//
// One mutex, `Runtime::mutex`, orders issue and launch across threads. It is never held while
// waiting for the plugin, for a compile, or for the interpreter's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "pjrt/client.h"
#include "runtime/executable_store.h"
#include "runtime/kernel.h"
#include "runtime/storage.h"
#include "runtime/stream.h"

namespace tn {

class Batches;
class Recorder;
class SegmentAllocator;

// One value that goes into a launch: a storage's buffer, or a 0-d number.
struct LaunchParam {
  DeviceStorage* storage = nullptr;
  DeviceBuffer* number = nullptr;
};

struct Launch {
  Kernel* kernel = nullptr;
  Stream* stream = nullptr;
  std::span<const LaunchParam> params;
  std::span<DeviceStorage* const> outputs;
  bool uses_rng = false;
  uint64_t seed = 0;
  uint64_t offset = 0;
  uint64_t number = 0;  // the device's count of launches, in the order of issue
  // Where Python issued it ("file.py:12"); null: by the line that runs now.
  const std::string* line = nullptr;
  // Whether adaptive eager may hold it back.
  bool may_hold = false;
  // Not null: if the plugin refuses it and took nothing, this becomes true, and that is all.
  bool* refused = nullptr;
};

// Finds the Python line that this thread runs, empty without one. Called under Runtime::mutex: must
// take no lock. Set once by csrc/torch.
using LineFinder = std::string (*)();
void set_line_finder(LineFinder finder);

class Device;
// Has everything compiled that is queued on a device and that nobody compiles yet (decision D12).
// Called without the lock; may take the interpreter's. Set once by csrc/torch.
using BatchStarter = void (*)(Device& device);
void set_batch_starter(BatchStarter starter);

class Device {
 public:
  static constexpr int kLowestPriority = 0;
  static constexpr int kHighestPriority = -1;

  Device(int index, Client* client, PJRT_Device* device, std::unique_ptr<SegmentAllocator> memory);
  ~Device();

  int index() const { return index_; }
  SegmentAllocator& memory() { return *memory_; }
  Client& client() { return *client_; }
  PJRT_Device* pjrt() const { return device_; }
  Stream& default_stream() { return *by_id_[0]; }

  // All of these need Runtime::mutex held, by `lock` where they wait.

  // One of the streams of a priority, each in turn. They live as long as the device.
  Stream& stream_from_pool(int priority);
  // Null when there is no such stream.
  Stream* stream(int64_t id);

  // Launches now if nothing that the stream or a storage was asked before is in the way and the
  // kernel is resident, else queues. Storages' layouts must already say what they will hold. False:
  // the kernel was evicted and nothing is in the way; the caller reloads it without the lock and
  // tries again.
  bool submit(Launch& launch);
  // Records an event after what the stream was asked so far.
  std::shared_ptr<Recording> record(Stream& stream, bool timing);
  // What the stream is asked from now on comes after `recording`, which may be another device's.
  void wait(Stream& stream, const std::shared_ptr<Recording>& recording);
  // Launches what the heads of the queues allow without waiting.
  void advance();
  // Launches everything queued, waiting for compiles.
  void drain(std::unique_lock<std::mutex>& lock);
  // The same for what one stream was asked, up to a ticket.
  static void drain(Stream& stream, uint64_t ticket, std::unique_lock<std::mutex>& lock);
  // The same for all that uses a storage, and all of a stream.
  static void drain_uses(DeviceStorage& storage, Stream& stream,
                         std::unique_lock<std::mutex>& lock);
  // A 0-d uint64 that nobody will ask for again.
  Result<Ref<DeviceBuffer>> fresh_number(uint64_t value);
  // A 0-d buffer holding `bits` (low end first) as `dtype`, from a bounded cache.
  Result<Ref<DeviceBuffer>> number(DType dtype, uint64_t bits, uint64_t high_bits = 0);
  // Gives an empty storage a buffer of zeros.
  Status materialize(DeviceStorage& storage);
  // The number of work that is no launch, in the order of issue.
  uint64_t next_number() { return ++numbered_; }

  // Waits for everything on the device and reads error words. Returns the earliest error since the
  // last call and forgets it, and all others. The lock is held on return.
  std::optional<DeviceError> synchronize(std::unique_lock<std::mutex>& lock);
  // The same for one stream and those it waited for.
  static std::optional<DeviceError> synchronize(Stream& stream, std::unique_lock<std::mutex>& lock);
  // The same for what comes before an event.
  static std::optional<DeviceError> synchronize(Recording& recording,
                                                std::unique_lock<std::mutex>& lock);
  // Whether everything before an event is complete; never blocks.
  static bool complete(Recording& recording);
  // True when nothing of the stream is queued or running; never blocks.
  static bool idle(Stream& stream);
  size_t queued() const { return queued_; }
  Recorder& recorder() { return *recorder_; }
  Batches& batches() { return *batches_; }
  static std::string line_of(const Launch& launch);

 private:
  friend class Batches;
  friend class Recorder;
  // Why the head of a queue cannot be handed over.
  struct Hold {
    enum class Kind { kNothing, kStream, kCompile, kReload } kind = Kind::kNothing;
    Stream* stream = nullptr;  // must first hand over what it has up to `ticket`
    uint64_t ticket = 0;
    std::shared_ptr<Executable> executable;  // of a launch that nothing holds
  };

  Hold hold_of(const Queued& head);
  void hand_over_head(Stream& stream, std::shared_ptr<Executable> executable);
  // Puts the launches of the batch at the head in its place.
  void take_apart_head(Stream& stream);
  bool in_the_way(const Launch& launch) const;
  Queued& enqueue(Stream& stream);
  void enqueue(const Launch& launch);
  // Launches now or queues, also what was evicted.
  void launch_or_queue(const Launch& launch);
  void launch_now(const Launch& launch, Executable& executable);
  // Records the error, poisons the outputs, and says why.
  std::shared_ptr<const std::string> fail(const Launch& launch, const Status& status);
  void poison(const Launch& launch, std::shared_ptr<const std::string> why);

  const int index_;
  Client* const client_;
  PJRT_Device* const device_;
  std::unique_ptr<SegmentAllocator> memory_;
  std::vector<std::unique_ptr<Stream>> by_id_;  // null until somebody asks for it
  std::vector<Stream*> by_priority_;
  uint64_t next_in_pool_[kLowestPriority - kHighestPriority + 1] = {};
  size_t queued_ = 0;
  uint64_t numbered_ = 0;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<Batches> batches_;
  struct NumberKey {
    DType dtype;
    uint64_t bits;
    uint64_t high_bits;
    bool operator==(const NumberKey&) const = default;
  };
  struct NumberHash {
    size_t operator()(const NumberKey& k) const {
      return (k.bits ^ (k.high_bits << 1) ^ (static_cast<uint64_t>(k.dtype) << 56)) *
             0x9E3779B97F4A7C15ull;
    }
  };
  std::unordered_map<NumberKey, Ref<DeviceBuffer>, NumberHash> numbers_;
};

struct RuntimeOptions {
  std::string plugin_path;
  std::vector<NamedOption> client_options;
  int num_devices = 1;
  size_t hbm_bytes = size_t{24} << 30;
  size_t executable_limit_bytes = size_t{512} << 20;
  bool launch_blocking = false;
  bool progress = false;
};

// The process's one runtime.
class Runtime {
 public:
  // Null until `start` succeeded.
  static Runtime* get();
  // Loads the plugin and creates client and devices. Once a process.
  static Status start(const RuntimeOptions& options, ExecutableStore::Loader loader);

  std::mutex mutex;
  ExecutableStore store;

  Plugin& plugin() { return *plugin_; }
  Client& client() { return *client_; }
  int num_devices() const { return static_cast<int>(devices_.size()); }
  Device& device(int index) { return *devices_[index]; }
  const RuntimeOptions& options() const { return options_; }

 private:
  Runtime() = default;

  RuntimeOptions options_;
  std::shared_ptr<Plugin> plugin_;
  std::shared_ptr<Client> client_;
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace tn
