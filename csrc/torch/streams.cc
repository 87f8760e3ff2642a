#include "torch/streams.h"

#include <array>
#include <limits>

#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

// By device; null is the default stream. c10 counts devices in eight bits.
thread_local std::array<Stream*, std::numeric_limits<c10::DeviceIndex>::max() + 1> t_current{};

}  // namespace

Stream& current_stream(Device& device) {
  Stream* stream = t_current[device.index()];
  return stream ? *stream : device.default_stream();
}

void set_current_stream(Stream& stream) { t_current[stream.device.index()] = &stream; }

Stream& stream_of(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == c10::DeviceType::PrivateUse1,
              "expected a stream of a neuron device, got one of ", stream.device());
  Runtime& rt = runtime();
  const int index = checked_device(stream.device_index());
  std::unique_lock lock(rt.mutex);
  Stream* found = rt.device(index).stream(stream.id());
  TORCH_CHECK(found, "neuron:", index, " has no stream ", stream.id(),
              ": make streams with torch.neuron.Stream()");
  return *found;
}

c10::Stream to_c10(const Stream& stream) {
  const c10::Device device(c10::DeviceType::PrivateUse1,
                           static_cast<c10::DeviceIndex>(stream.device.index()));
  return c10::Stream(c10::Stream::UNSAFE, device, stream.id);
}

}  // namespace tn::torch_glue
