// The door from PyTorch's side to the runtime: starting it, current device, errors, tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/device.h"

namespace tn::torch_glue {

// Starts the runtime at first use (Python reads the options); throws what goes wrong.
Runtime& runtime();
bool is_started();
// In a child forked after the runtime was started; using the device there raises.
bool in_bad_fork();
// Called by `runtime()` when nothing is started yet; must start it. Set once by the bindings.
void set_starter(std::function<void()> starter);

int num_devices() noexcept;
// Number of devices asked for, without starting anything. Set by the bindings.
void set_device_counter(std::function<int()> counter);
// The device of this thread; one that chose none has what the main thread set last.
int current_device();
// The device that an index from outside means: -1 is the current one. Throws for one that is not
// there. Every entry that takes an index asks here; nothing is started.
int checked_device(int64_t index);
// For this thread, and in the main thread for those that choose none.
void set_current_device(int index);
// For this thread alone (guards, context managers); returns the device before.
int exchange_current_device(int index);
Device& neuron_device(const at::Tensor& tensor);

std::optional<DType> find_dtype(c10::ScalarType type);
DType to_dtype(c10::ScalarType type);  // throws for dtypes the device has no form of
c10::ScalarType to_scalar_type(DType dtype);

// Throws the c10 exception for a status, with the PJRT code in its text.
void check(const Status& status, const char* what);
[[noreturn]] void raise(const DeviceError& error);

// Releases the interpreter's lock, if this thread holds it, while alive.
class ReleaseGil {
 public:
  ReleaseGil();
  ~ReleaseGil();
  ReleaseGil(const ReleaseGil&) = delete;

 private:
  void* state_;
};

// Deleter of every data pointer whose context is a DeviceStorage.
void release_storage(void* context);
// The storage at the address of a data pointer that somebody else made (torch's from_blob, which
// pickling uses); throws when there is none.
DeviceStorage* storage_at(const c10::DataPtr& data);

// The storage beneath a tensor of this device.
inline DeviceStorage* storage_of(const at::Tensor& tensor) {
  const c10::DataPtr& data = tensor.unsafeGetTensorImpl()->unsafe_storage().data_ptr();
  return data.get_deleter() == &release_storage ? static_cast<DeviceStorage*>(data.get_context())
                                                : storage_at(data);
}

// Wraps a storage; `strides` empty means contiguous.
at::Tensor make_tensor(Ref<DeviceStorage> storage, c10::ScalarType dtype, c10::IntArrayRef sizes,
                       c10::IntArrayRef strides);
// Layout that a contiguous tensor of these sizes gives a fresh storage.
Layout fresh_layout(DType dtype, c10::IntArrayRef sizes);

// Waits for everything on a device, or on a stream and what it waits for, and raises the earliest
// error.
void synchronize(Device& device);
void synchronize(Stream& stream);

// What a call does that makes the host wait for the device: nothing more, warn, or raise.
enum class SyncDebugMode : uint8_t { kDefault, kWarn, kError };
SyncDebugMode sync_debug_mode();
void set_sync_debug_mode(SyncDebugMode mode);
// Said by every such call before it waits.
void note_synchronizing();

}  // namespace tn::torch_glue
