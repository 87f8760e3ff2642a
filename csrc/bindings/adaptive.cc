#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bindings/parts.h"
#include "bindings/python.h"
#include "runtime/batches.h"
#include "runtime/recorder.h"
#include "torch/adaptive.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

namespace py = pybind11;

struct Request {
  Sequence* sequence;
  std::vector<Sequence::Part> parts;
  Dataflow flow;
};

// What the fuser gets: the program of each launch, and which storages it takes and gives.
py::dict describe(const std::vector<Sequence::Part>& parts, const Dataflow& flow) {
  py::list steps;
  size_t at = 0;
  auto slots = [&](size_t count) {
    py::list list;
    for (size_t i = 0; i < count; ++i) list.append(flow.slots[at++]);
    return list;
  };
  for (const Sequence::Part& part : parts) {
    py::list params = slots(part.num_params);
    py::list outputs = slots(part.num_outputs);
    steps.append(py::make_tuple(part.kernel->name(), part.kernel->reload_key(), params, outputs,
                                part.kernel->writes(), part.uses_rng));
  }
  py::dict result;
  result["steps"] = steps;
  result["created"] = flow.created;
  result["written"] = flow.written;
  result["needed"] = flow.needed;
  result["dropped"] = flow.dropped;
  return result;
}

void serve(Device& device, const py::function& fuser) {
  std::vector<Request> requests;
  {
    std::unique_lock lock(runtime().mutex);
    for (Sequence* s : device.recorder().take_requests()) {
      requests.push_back({s, s->parts, s->flow});
    }
  }
  for (const Request& request : requests) {
    Kernel* kernel = with_python([&]() -> Kernel* {
      const py::object made = fuser(describe(request.parts, request.flow));
      return made.is_none() ? nullptr : made.cast<KernelHandle&>().kernel;
    });
    std::unique_lock lock(runtime().mutex);
    request.sequence->fused = kernel;
    request.sequence->retired |= !kernel;
  }
}

std::vector<KernelHandle> handles(const std::vector<Kernel*>& kernels) {
  std::vector<KernelHandle> result;
  for (Kernel* kernel : kernels) result.push_back({kernel});
  return result;
}

// Has what is due in the queues compiled: `batcher(request, kernels)` gives the kernel of a run, or
// None; `alone(kernels)` compiles each by itself.
void batch(Device& device, const py::function& batcher, const py::function& alone) {
  std::unique_lock lock(runtime().mutex);
  while (device.batches().due()) {
    std::vector<Kernel*> left;
    const std::optional<Run> run = device.batches().next(left);
    lock.unlock();
    Kernel* kernel = nullptr;
    if (run) {
      for (const Sequence::Part& part : run->parts) {
        if (part.kernel->deferred()) left.push_back(part.kernel);
      }
      kernel = with_python([&]() -> Kernel* {
        const py::object made = batcher(describe(run->parts, run->flow), handles(left));
        return made.is_none() ? nullptr : made.cast<KernelHandle&>().kernel;
      });
    } else if (!left.empty()) {
      with_python([&] { alone(handles(left)); });
    }
    lock.lock();
    if (run && !(kernel && device.batches().place(*run, kernel))) {
      // Another thread was quicker, or it cannot be made: what is left is looked at again.
      lock.unlock();
      with_python([&] { alone(handles(left)); });
      lock.lock();
    }
  }
}

py::dict stats_of(Device& device) {
  EagerStats stats;
  BatchStats batches;
  {
    std::unique_lock lock(runtime().mutex);
    stats = device.recorder().stats();
    batches = device.batches().stats();
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
  result["batches"] = batches.batches;
  result["batched_operators"] = batches.operators;
  result["batches_taken_apart"] = batches.taken_apart;
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
  m.def("set_batcher", [](py::function batcher, py::function alone) {
    auto* kept = new std::pair(std::move(batcher), std::move(alone));
    set_batcher([kept](Device& device) { batch(device, kept->first, kept->second); });
  });
}

}  // namespace tn::torch_glue
