// What PyTorch asks of an accelerator: devices, streams, events, generators, resizing.

#include <ATen/Functions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <memory>

#include "runtime/batches.h"
#include "runtime/segments.h"
#include "torch/adaptive.h"
#include "torch/generator.h"
#include "torch/pinned.h"
#include "torch/python_line.h"
#include "torch/resize.h"
#include "torch/runtime.h"
#include "torch/streams.h"

namespace tn::torch_glue {
namespace {

// Whoever asks whether something is over wants it to begin.
void compile_if_due(Device& device, std::unique_lock<std::mutex>& lock) {
  if (!device.batches().due()) return;
  lock.unlock();
  compile_batches(device);
}

class NeuronHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return num_devices() > 0; }
  void init() const override { runtime(); }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    checked_device(index);
    return is_started();
  }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(num_devices());
  }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return static_cast<c10::DeviceIndex>(exchange_current_device(index));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? getCurrentDevice() : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<NeuronGenerator>(
        static_cast<c10::DeviceIndex>(checked_device(index)));
  }
  at::Device getDeviceFromPtr(void* data) const override {
    const auto address = reinterpret_cast<uintptr_t>(data);
    for (int i = 0; is_started() && i < num_devices(); ++i) {
      if (runtime().device(i).memory().contains(address)) {
        return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(i)};
      }
    }
    TORCH_CHECK(false, "the pointer does not belong to a neuron device");
  }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

// A c10 event: its last record.
struct Event {
  explicit Event(bool timing) : timing(timing) {}

  const bool timing;
  std::shared_ptr<Recording> recording;  // guarded by Runtime::mutex
};

class NeuronGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    if (device.index() >= 0 && device.index() != before.index()) {
      exchange_current_device(device.index());
    }
    return before;
  }
  c10::Device getDevice() const override {
    return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(current_device())};
  }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    try {
      exchange_current_device(device.index());
    } catch (...) {
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(num_devices());
  }

  c10::Stream getStream(c10::Device device) const override {
    // Autograd asks with every operator, also before anything ran on the device.
    if (!is_started()) return getDefaultStream(device);
    return to_c10(current_stream(Runtime::get()->device(checked_device(device.index()))));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    const int index = checked_device(device.index());
    return c10::Stream(c10::Stream::DEFAULT,
                       {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)});
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high_priority) const override {
    return getNewStream(device,
                        is_high_priority ? Device::kHighestPriority : Device::kLowestPriority);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const int index = checked_device(device.index());
    Runtime& rt = runtime();
    std::unique_lock lock(rt.mutex);
    return to_c10(rt.device(index).stream_from_pool(priority));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    // The default stream is current already where nothing was started.
    if (stream != before) set_current_stream(stream_of(stream));
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return &stream_of(stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex recorded_on,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(recorded_on < 0 || recorded_on == stream.device_index(), "Event device ",
                static_cast<int>(recorded_on), " does not match recording stream's device ",
                static_cast<int>(stream.device_index()),
                ": make another event for a stream of another device");
    if (!*event) *event = new Event(flag == c10::EventFlag::BACKEND_DEFAULT);
    auto* recorded = static_cast<Event*>(*event);
    Stream& on = stream_of(stream);
    std::unique_lock lock(runtime().mutex);
    recorded->recording = on.device.record(on, recorded->timing);
    compile_if_due(on.device, lock);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;
    Stream& waiting = stream_of(stream);
    std::unique_lock lock(runtime().mutex);
    waiting.device.wait(waiting, static_cast<Event*>(event)->recording);
  }
  bool queryEvent(void* event) const override {
    if (!event || in_bad_fork()) return true;
    std::unique_lock lock(runtime().mutex);
    const std::shared_ptr<Recording> recording = static_cast<Event*>(event)->recording;
    const bool complete = Device::complete(*recording);
    compile_if_due(recording->stream->device, lock);
    return complete;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    std::optional<DeviceError> error;
    {
      ReleaseGil no_gil;
      std::unique_lock lock(runtime().mutex);
      const std::shared_ptr<Recording> recording = static_cast<Event*>(event)->recording;
      error = Device::synchronize(*recording, lock);
    }
    if (error) raise(*error);
  }
  // Milliseconds between what both events were recorded behind; both are complete.
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    std::shared_ptr<Recording> first, last;
    {
      std::unique_lock lock(runtime().mutex);
      first = static_cast<Event*>(start)->recording;
      last = static_cast<Event*>(end)->recording;
    }
    const Device &from = first->stream->device, &to = last->stream->device;
    TORCH_CHECK(&from == &to,
                "elapsed_time needs two events of one device, got events of neuron:", from.index(),
                " and neuron:", to.index());
    return static_cast<double>(last->complete_ns() - first->complete_ns()) / 1e6;
  }
  bool queryStream(const c10::Stream& stream) const override {
    checked_device(stream.device_index());
    if (!is_started()) return true;
    Stream& queried = stream_of(stream);
    std::unique_lock lock(runtime().mutex);
    const bool idle = Device::idle(queried);
    compile_if_due(queried.device, lock);
    return idle;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    checked_device(stream.device_index());
    note_synchronizing();
    if (is_started()) synchronize(stream_of(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    const int checked = checked_device(index);
    if (is_started()) synchronize(runtime().device(checked));
  }
  // A launch keeps what it uses, so nothing must be remembered.
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    checked_device(device.index());
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
#define TN_SUPPORTED(_, name)                                    \
  capability.capability_data.supported_scalar_types.has_##name = \
      find_dtype(c10::ScalarType::name).has_value();
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(TN_SUPPORTED)
#undef TN_SUPPORTED
    return capability;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NeuronGuard);

[[maybe_unused]] const bool registered = [] {
  set_line_finder(&python_line);
  at::RegisterPrivateUse1HooksInterface(new NeuronHooks);
  return true;
}();

}  // namespace
}  // namespace tn::torch_glue
