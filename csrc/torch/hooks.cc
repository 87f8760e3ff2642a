// What PyTorch asks of an accelerator: devices, streams' guard, generators, resizing.

#include <ATen/Functions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "torch/generator.h"
#include "torch/pinned.h"
#include "torch/resize.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

class NeuronHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return num_devices() > 0; }
  void init() const override { runtime(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_started(); }
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
    if (index < 0) index = getCurrentDevice();
    TORCH_CHECK(index < deviceCount(),
                "invalid device ordinal for a generator: neuron:", static_cast<int>(index),
                " (this process has ", num_devices(),
                " neuron device(s); TORCH_NEURONX_NUM_DEVICES sets the number)");
    return at::make_generator<NeuronGenerator>(index);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    const auto address = reinterpret_cast<uintptr_t>(data);
    for (int i = 0; is_started() && i < num_devices(); ++i) {
      if (runtime().device(i).arena().contains(address)) {
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

// One stream a device: the default one. Work is ordered, so waiting for an event of the same device
// is nothing to do.
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
  c10::Stream getStream(c10::Device device) const override { return getDefaultStream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    if (device.index() < 0) device = getDevice();
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getDefaultStream(device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getDefaultStream(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getDefaultStream(stream.device());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(num_devices());
  }

  void record(void** event, const c10::Stream&, const c10::DeviceIndex index,
              const c10::EventFlag) const override {
    // Any non-null value: the event is complete when the device is idle.
    *event = reinterpret_cast<void*>(static_cast<uintptr_t>(index < 0 ? 0 : index) + 1);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    if (!event || !is_started()) return true;
    Runtime& rt = runtime();
    std::unique_lock lock(rt.mutex);
    return rt.device(static_cast<int>(reinterpret_cast<uintptr_t>(event) - 1)).idle();
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void synchronizeEvent(void* event) const override {
    if (event) {
      synchronizeDevice(static_cast<c10::DeviceIndex>(reinterpret_cast<uintptr_t>(event) - 1));
    }
  }
  bool queryStream(const c10::Stream& stream) const override {
    if (!is_started()) return true;
    Runtime& rt = runtime();
    std::unique_lock lock(rt.mutex);
    return rt.device(stream.device_index()).idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronizeDevice(stream.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    if (!is_started()) return;
    synchronize(runtime().device(index < 0 ? current_device() : index));
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
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
  at::RegisterPrivateUse1HooksInterface(new NeuronHooks);
  return true;
}();

}  // namespace
}  // namespace tn::torch_glue
