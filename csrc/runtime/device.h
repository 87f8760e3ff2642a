// Devices: launching kernels, waiting for them, and the errors they leave behind.
//
// One mutex, `Runtime::mutex`, orders issue and launch across threads. It is never held while
// waiting for the plugin, for a compile, or for the interpreter's lock.
#pragma once

#include <cstdint>
#include <deque>
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
#include "runtime/arena.h"
#include "runtime/executable_store.h"
#include "runtime/kernel.h"
#include "runtime/storage.h"

namespace tn {

// What is raised for a device error: a builtin exception's name and its text.
struct DeviceError {
  std::string exception = "RuntimeError";
  std::string message;
};

// One value that goes into a launch: a storage's buffer, or a 0-d number.
struct LaunchParam {
  DeviceStorage* storage = nullptr;
  DeviceBuffer* number = nullptr;
};

struct Launch {
  Kernel* kernel = nullptr;
  std::span<const LaunchParam> params;
  std::span<DeviceStorage* const> outputs;
  bool uses_rng = false;
  uint64_t seed = 0;
  uint64_t offset = 0;
  // Where Python issued it ("file.py:12"), when known.
  const std::string* line = nullptr;
};

class Device {
 public:
  Device(int index, Client* client, PJRT_Device* device, std::unique_ptr<Arena> arena);

  int index() const { return index_; }
  Arena& arena() { return *arena_; }
  Client& client() { return *client_; }
  PJRT_Device* pjrt() const { return device_; }

  // All of these need Runtime::mutex held by `lock`.

  // Launches now if nothing waits before it and the kernel is resident, else queues. Storages'
  // layouts must already say what they will hold. False: the kernel was evicted and nothing waits;
  // the caller reloads it without the lock and tries again.
  bool submit(const Launch& launch);
  // Launches what the queue's head allows without waiting.
  void advance();
  // Launches everything queued, waiting for compiles; releases the lock while waiting.
  void drain(std::unique_lock<std::mutex>& lock);
  // A 0-d buffer holding `bits` (low end first) as `dtype`, from a bounded cache.
  Result<Ref<DeviceBuffer>> number(DType dtype, uint64_t bits, uint64_t high_bits = 0);
  // Gives an empty storage a buffer of zeros.
  Status materialize(DeviceStorage& storage);
  void record_error(DeviceError error);

  // Drains, waits for all launches and reads error words. Returns the earliest error since the
  // last call and forgets it. `lock` is held on return.
  std::optional<DeviceError> synchronize(std::unique_lock<std::mutex>& lock);
  // True when nothing is queued or running; never blocks.
  bool idle();
  size_t queued() const { return queue_.size(); }

 private:
  struct Queued {
    Kernel* kernel;
    std::vector<Ref<DeviceStorage>> storages;  // by parameter; null for numbers
    std::vector<Ref<DeviceBuffer>> numbers;
    std::vector<Ref<DeviceStorage>> outputs;
    std::vector<int32_t> writes;
    bool uses_rng;
    uint64_t seed;
    uint64_t offset;
    std::string line;
  };
  struct InFlight {
    Event event;
    Kernel* kernel;
  };
  struct ErrorWord {
    Ref<DeviceBuffer> buffer;
    Kernel* kernel;
    std::string line;
  };

  bool head_ready(bool& needs_reload);
  void launch_head(std::shared_ptr<Executable> executable);
  void launch_now(const Launch& launch, Executable& executable);
  void poison(const Launch& launch, std::shared_ptr<const std::string> why);
  void prune();
  static std::optional<DeviceError> error_of(const ErrorWord& word);
  void look_at_oldest_words();

  const int index_;
  Client* const client_;
  PJRT_Device* const device_;
  std::unique_ptr<Arena> arena_;
  std::deque<Queued> queue_;
  std::deque<InFlight> in_flight_;
  std::deque<ErrorWord> words_;
  std::optional<DeviceError> first_error_;
  uint64_t later_errors_ = 0;
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
