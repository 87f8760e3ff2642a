// The device's part of the legacy profiler: events by which it times kernels.

#include "torch/profile.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <memory>

#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

class NeuronProfilerStubs final : public torch::profiler::impl::ProfilerStubs {
 public:
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event,
              int64_t* cpu_ns) const override {
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::PrivateUse1);
    const c10::Device current = guard.getDevice();
    if (device) *device = current.index();
    auto made =
        std::make_shared<c10::Event>(c10::DeviceType::PrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
    if (cpu_ns) *cpu_ns = c10::getTime();
    made->record(guard.getStream(current));
    *event = std::move(made);
  }
  // Milliseconds.
  float elapsed(const ProfilerVoidEventStub* event,
                const ProfilerVoidEventStub* event2) const override {
    auto& start = *static_cast<c10::Event*>(event->get());
    auto& end = *static_cast<c10::Event*>(event2->get());
    start.synchronize();
    end.synchronize();
    return static_cast<float>(start.elapsedTime(end));
  }
  // Ranges go to PyTorch's own profiler (ProfileRange); PJRT has no marks of its own.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override {
    for (int i = 0; i < num_devices(); ++i) op(i);
  }
  void synchronize() const override {
    if (is_started()) torch_glue::synchronize(runtime().device(current_device()));
  }
};

[[maybe_unused]] const bool registered = [] {
  static NeuronProfilerStubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
  return true;
}();

}  // namespace
}  // namespace tn::torch_glue
