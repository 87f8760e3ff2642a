#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bindings/parts.h"
#include "bindings/python.h"
#include "runtime/recorder.h"
#include "torch/adaptive.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

namespace py = pybind11;

struct Request {
  Sequence* sequence;
  std::vector<Kernel*> kernels;
  std::vector<Sequence::Part> parts;
  Dataflow flow;
};

// What the fuser gets: the program of each launch, and which storages it takes and gives.
py::dict describe(const Request& request) {
  py::list steps;
  size_t at = 0;
  auto slots = [&](size_t count) {
    py::list list;
    for (size_t i = 0; i < count; ++i) list.append(request.flow.slots[at++]);
    return list;
  };
  for (const Sequence::Part& part : request.parts) {
    py::list params = slots(part.num_params);
    py::list outputs = slots(part.num_outputs);
    steps.append(py::make_tuple(part.kernel->name(), part.kernel->reload_key(), params, outputs,
                                part.kernel->signature().writes, part.uses_rng));
  }
  py::dict result;
  result["steps"] = steps;
  result["created"] = request.flow.created;
  result["written"] = request.flow.written;
  result["needed"] = request.flow.needed;
  result["dropped"] = request.flow.dropped;
  return result;
}

void serve(Device& device, const py::function& fuser) {
  std::vector<Request> requests;
  {
    std::unique_lock lock(runtime().mutex);
    for (Sequence* s : device.recorder().take_requests()) {
      requests.push_back({s, s->kernels, s->parts, s->flow});
    }
  }
  for (const Request& request : requests) {
    Kernel* kernel = with_python([&]() -> Kernel* {
      const py::object made = fuser(describe(request));
      return made.is_none() ? nullptr : made.cast<KernelHandle&>().kernel;
    });
    std::unique_lock lock(runtime().mutex);
    request.sequence->fused = kernel;
    request.sequence->retired |= !kernel;
  }
}

py::dict stats_of(Device& device) {
  EagerStats stats;
  {
    std::unique_lock lock(runtime().mutex);
    stats = device.recorder().stats();
  }
  py::dict result;
  result["recorded"] = stats.recorded;
  result["fused_operators"] = stats.fused_operators;
  result["fused_launches"] = stats.fused_launches;
  py::dict flushes;
  for (size_t i = 0; i < stats.flushes.size(); ++i) {
    flushes[flush_name(static_cast<Flush>(i))] = stats.flushes[i];
  }
  result["flushes"] = flushes;
  result["loops"] = stats.loops;
  result["sequences"] = stats.sequences;
  result["background_compiles"] = stats.requested;
  result["fused_executables"] = stats.ready;
  result["failed_compiles"] = stats.failed;
  result["seconds_saved"] = static_cast<double>(stats.saved_ns) * 1e-9;
  result["over_budget"] = stats.over_budget;
  return result;
}

}  // namespace

void bind_adaptive(py::module_& m) {
  py::enum_<EagerMode>(m, "EagerMode")
      .value("PER_OP", EagerMode::kPerOp)
      .value("ADAPTIVE", EagerMode::kAdaptive)
      .value("BLOCKING", EagerMode::kBlocking);
  m.def("runtime_init", [] { static_cast<void>(runtime()); });
  m.def("eager_mode", &eager_mode);
  m.def("set_eager_mode", &set_eager_mode);
  m.def("set_eager_limits", [](uint64_t sequences, uint32_t launches) {
    std::unique_lock lock(runtime().mutex);
    for (int i = 0; i < runtime().num_devices(); ++i) {
      runtime().device(i).recorder().set_budget(sequences);
      runtime().device(i).recorder().set_longest(launches);
    }
  });
  m.def("eager_stats", [](int index) { return stats_of(runtime().device(checked_device(index))); });
  m.def("set_fuser", [](py::function f) {
    auto* kept = new py::function(std::move(f));
    set_fuser([kept](Device& device) { serve(device, *kept); });
  });
}

}  // namespace tn::torch_glue
