#include "torch/streams.h"

#include <pybind11/pybind11.h>

#include <utility>

#include "bindings/parts.h"
#include "torch/runtime.h"

namespace tn::torch_glue {

void bind_streams(pybind11::module_& m) {
  m.def("stream_priority", [](int device, int64_t id) {
    const c10::Device on(c10::DeviceType::PrivateUse1,
                         static_cast<c10::DeviceIndex>(checked_device(device)));
    return stream_of(c10::Stream(c10::Stream::UNSAFE, on, id)).priority;
  });
  m.def("stream_priority_range",
        [] { return std::pair(Device::kLowestPriority, Device::kHighestPriority); });
}

}  // namespace tn::torch_glue
