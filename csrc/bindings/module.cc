// torch_neuronx._C: what Python sees of the runtime.

#include <ATen/DLConvertor.h>
#include <ATen/ThreadLocalState.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "base/counters.h"
#include "bindings/parts.h"
#include "bindings/python.h"
#include "runtime/segments.h"
#include "torch/dispatch/launch.h"
#include "torch/dispatch/overloads.h"
#include "torch/ending.h"
#include "torch/generator.h"
#include "torch/layout.h"
#include "torch/runtime.h"
#include "torch/shared_memory.h"

namespace tn::torch_glue {
namespace {

namespace py = pybind11;

// A thread's local state, profiler included, made another thread's for a while.
class CarriedState {
 public:
  void enter() { guard_.emplace(state_); }
  void leave() { guard_.reset(); }

 private:
  at::ThreadLocalState state_;
  std::optional<at::ThreadLocalStateGuard> guard_;
};

py::object to_python(const NamedValue& value) {
  return std::visit([](const auto& v) -> py::object { return py::cast(v); }, value);
}

// A loaded executable in Python's hands.
struct ExecutableHandle {
  std::shared_ptr<Executable> executable;
};

py::tuple leaf_tuple(const Leaf& leaf) {
  switch (leaf.kind) {
    case Leaf::Kind::kTensor:
      return py::make_tuple("tensor", leaf.parameter, leaf.offset_parameter, leaf.box);
    case Leaf::Kind::kNumber:
      return py::make_tuple("number", leaf.parameter, leaf.weak);
    case Leaf::Kind::kStatic:
      break;
  }
  return py::make_tuple("static");
}

// What a planner gets: enough to write the program, nothing that it must compute again.
py::dict describe(const CallKey& key) {
  py::list parameters;
  for (const Parameter& p : key.parameters) {
    py::tuple dims = p.storage ? py::tuple(py::cast(p.storage->layout.dims)) : py::tuple(0);
    const DType dtype = p.storage ? p.storage->layout.dtype : p.dtype;
    parameters.append(py::make_tuple(std::string(dtype_name(dtype)), dims, p.storage != nullptr));
  }
  py::list leaves;
  for (const Leaf& leaf : key.leaves) leaves.append(leaf_tuple(leaf));
  py::dict result;
  result["parameters"] = parameters;
  result["leaves"] = leaves;
  result["words"] = py::bytes(reinterpret_cast<const char*>(key.words.data()),
                              key.words.size() * sizeof(uint64_t));
  result["device"] = key.device ? key.device->index() : current_device();
  return result;
}

std::shared_ptr<const Plan> make_plan(const py::object& kernel, const py::list& outputs,
                                      const py::list& returns, const py::list& resizes,
                                      uint64_t rng_increment, bool uses_rng, bool checked) {
  auto plan = std::make_shared<Plan>();
  if (!kernel.is_none()) plan->kernel = kernel.cast<KernelHandle&>().kernel;
  for (const py::handle item : outputs) {
    auto [dtype_name_text, sizes, strides] =
        item.cast<std::tuple<std::string, std::vector<int64_t>, std::vector<int64_t>>>();
    const auto dtype = dtype_from_name(dtype_name_text);
    TORCH_CHECK(dtype, "unknown dtype ", dtype_name_text);
    OutputPlan output;
    output.dtype = to_scalar_type(*dtype);
    output.sizes = std::move(sizes);
    const int64_t numel = c10::multiply_integers(output.sizes);
    output.bytes = static_cast<size_t>(numel) * dtype_size_bytes(*dtype);
    output.layout = strides.empty() ? fresh_layout(*dtype, output.sizes)
                                    : layout_for(*dtype, output.sizes, strides, output.bytes);
    output.strides = std::move(strides);
    plan->keeps_origin |= output.bytes >= SegmentAllocator::kSmallLimit;
    plan->outputs.push_back(std::move(output));
  }
  for (const py::handle item : returns) {
    const auto fields = item.cast<py::tuple>();
    const auto kind = fields[0].cast<std::string>();
    ReturnPlan r;
    r.index = fields[1].cast<int64_t>();
    if (kind == "output") {
      r.kind = ReturnPlan::Kind::kOutput;
    } else if (kind == "argument") {
      r.kind = ReturnPlan::Kind::kArgument;
    } else if (kind == "undefined") {
      r.kind = ReturnPlan::Kind::kUndefined;
    } else if (kind == "list") {
      r.kind = ReturnPlan::Kind::kList;
    } else if (kind == "int") {
      r.kind = ReturnPlan::Kind::kInt;
    } else if (kind == "view" || kind == "output_view") {
      r.kind = kind == "view" ? ReturnPlan::Kind::kView : ReturnPlan::Kind::kOutputView;
      r.sizes = fields[2].cast<std::vector<int64_t>>();
      r.strides = fields[3].cast<std::vector<int64_t>>();
      r.offset = fields[4].cast<int64_t>();
    } else {
      TORCH_CHECK(false, "unknown return kind ", kind);
    }
    plan->returns.push_back(std::move(r));
  }
  for (const py::handle item : resizes) {
    plan->resizes.push_back(item.cast<std::pair<int, std::vector<int64_t>>>());
  }
  plan->rng_increment = rng_increment;
  plan->uses_rng = uses_rng;
  plan->checked = checked;
  return plan;
}

void kernel_ready(KernelHandle& handle, const ExecutableHandle& executable, size_t bytes,
                  std::vector<int32_t> kept, std::vector<int32_t> writes,
                  const std::vector<std::pair<std::string, std::string>>& checks,
                  std::string reload_key, std::vector<int32_t> donated) {
  KernelSignature signature;
  signature.kept = std::move(kept);
  signature.writes = std::move(writes);
  signature.donated = std::move(donated);
  for (const auto& [exception, message] : checks) signature.checks.push_back({exception, message});
  ReleaseGil no_gil;
  handle.kernel->set_ready(std::move(signature), executable.executable, bytes, &runtime().store,
                           std::move(reload_key));
}

void start(const std::string& plugin_path, const py::dict& client_options, int num_devices,
           size_t hbm_bytes, size_t executable_limit_bytes, bool launch_blocking, bool progress,
           py::function loader) {
  RuntimeOptions options;
  options.plugin_path = plugin_path;
  for (const auto& [name, value] : client_options) {
    options.client_options.push_back(
        {name.cast<std::string>(), py::isinstance<py::int_>(value)
                                       ? NamedValue(value.cast<int64_t>())
                                       : NamedValue(value.cast<std::string>())});
  }
  options.num_devices = num_devices;
  options.hbm_bytes = hbm_bytes;
  options.executable_limit_bytes = executable_limit_bytes;
  options.launch_blocking = launch_blocking;
  options.progress = progress;
  auto* kept = new py::function(std::move(loader));
  auto load = [kept](const std::string& key) -> Result<std::shared_ptr<Executable>> {
    wait_if_interpreter_ends();
    py::gil_scoped_acquire gil;
    try {
      return (*kept)(key).cast<ExecutableHandle&>().executable;
    } catch (const std::exception& error) {
      return internal_error(error.what());
    }
  };
  Status status;
  {
    ReleaseGil no_gil;
    status = Runtime::start(options, load);
  }
  check(status, "cannot start the neuron runtime");
}

py::dict platform() {
  Runtime& rt = runtime();
  py::dict result;
  result["plugin_path"] = rt.plugin().path();
  result["pjrt_version"] = rt.plugin().version();
  result["platform_name"] = rt.client().platform_name();
  result["platform_version"] = rt.client().platform_version();
  py::dict attributes;
  for (const auto& [name, value] : rt.plugin().attributes()) {
    attributes[py::str(name)] = to_python(value);
  }
  result["attributes"] = attributes;
  py::list devices;
  for (const DeviceDescription& d : rt.client().descriptions()) {
    devices.append(py::make_tuple(d.id, d.kind, d.debug));
  }
  result["devices"] = devices;
  return result;
}

// A compiled graph: a callable without schema, called with tensors and numbers. The numbers at
// the positions `operands` are read by its executables; any other is part of the key.
class Graph {
 public:
  Graph(std::string name, const std::vector<size_t>& operands)
      : callable_(std::move(name), policies(operands)) {}

  py::list call(const py::sequence& arguments) {
    std::vector<c10::IValue> values;
    values.reserve(py::len(arguments));
    for (const py::handle item : arguments) {
      if (THPVariable_Check(item.ptr())) {
        values.emplace_back(THPVariable_Unpack(item.ptr()));
      } else if (item.is_none()) {
        values.emplace_back();
      } else if (py::isinstance<py::bool_>(item)) {
        values.emplace_back(item.cast<bool>());
      } else if (py::isinstance<py::float_>(item)) {
        values.emplace_back(item.cast<double>());
      } else {
        values.emplace_back(item.cast<int64_t>());
      }
    }
    std::vector<c10::IValue> results;
    {
      ReleaseGil no_gil;
      callable_.call(values, results);
    }
    py::list list;
    for (const c10::IValue& result : results) {
      if (result.isTensor() && !result.toTensor().defined()) {
        list.append(py::none());
      } else {
        list.append(torch::jit::toPyObject(result));
      }
    }
    return list;
  }
  Callable& callable() { return callable_; }

 private:
  static std::vector<NumberPolicy> policies(const std::vector<size_t>& operands) {
    std::vector<NumberPolicy> result;
    for (const size_t position : operands) {
      if (result.size() <= position) result.resize(position + 1, NumberPolicy::kStatic);
      result[position] = NumberPolicy::kWide;
    }
    return result;
  }

  Callable callable_;
};

void bind(py::module_& m) {
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan");
  py::class_<KernelHandle>(m, "Kernel")
      .def(py::init([](std::string name) { return KernelHandle{new Kernel(std::move(name))}; }))
      .def("set_ready", &kernel_ready, py::arg("executable"), py::arg("bytes"), py::arg("kept"),
           py::arg("writes"), py::arg("checks"), py::arg("reload_key"),
           py::arg("donated") = std::vector<int32_t>())
      .def("set_description",
           [](KernelHandle& k, std::string text) { k.kernel->set_description(std::move(text)); })
      .def("set_fusible", [](KernelHandle& k) { k.kernel->set_fusible(); })
      .def("defer",
           [](KernelHandle& k, std::string reload_key, std::vector<int32_t> writes) {
             k.kernel->defer({std::move(reload_key), std::move(writes)});
           })
      .def("claim", [](KernelHandle& k) { return k.kernel->claim(); })
      .def_property_readonly("identity",
                             [](KernelHandle& k) { return reinterpret_cast<uintptr_t>(k.kernel); })
      .def("set_failed", [](KernelHandle& k, std::string why) { k.kernel->set_failed(why); })
      .def_property_readonly("name", [](KernelHandle& k) { return k.kernel->name(); })
      .def_property_readonly(
          "pending", [](KernelHandle& k) { return k.kernel->state() == KernelState::kPending; });
  py::class_<ExecutableHandle>(m, "Executable")
      .def_property_readonly(
          "code_bytes", [](ExecutableHandle& e) { return e.executable->generated_code_bytes(); })
      .def("memory_stats", [](ExecutableHandle& e) {
        Result<CompiledMemoryStats> stats = e.executable->memory_stats();
        check(stats.status(), "compiled memory statistics");
        py::dict result;
        result["code"] = stats->generated_code_bytes;
        result["arguments"] = stats->argument_bytes;
        result["outputs"] = stats->output_bytes;
        result["aliases"] = stats->alias_bytes;
        result["temporaries"] = stats->temp_bytes;
        return result;
      });
  m.def("compile", [](const std::string& module, const std::string& options) {
    Result<Executable> made = [&]() -> Result<Executable> {
      ReleaseGil no_gil;
      return runtime().client().compile(module, options);
    }();
    check(made.status(), "compile");
    return ExecutableHandle{std::make_shared<Executable>(std::move(made).value())};
  });
  m.def("deserialize", [](const std::string& bytes) {
    Result<Executable> made = [&]() -> Result<Executable> {
      ReleaseGil no_gil;
      return runtime().client().deserialize(bytes, "");
    }();
    check(made.status(), "load executable");
    return ExecutableHandle{std::make_shared<Executable>(std::move(made).value())};
  });
  m.def("serialize", [](const ExecutableHandle& e) {
    Result<std::string> bytes = [&] {
      ReleaseGil no_gil;
      return e.executable->serialize();
    }();
    check(bytes.status(), "serialize executable");
    return py::bytes(bytes.value());
  });

  m.def("start", &start);
  m.def("is_started", &is_started);
  m.def("in_bad_fork", &in_bad_fork);
  m.def("interpreter_ends_here", &interpreter_ends_here);
  m.def("let_autograd_finish", [] {
    ReleaseGil no_gil;
    let_autograd_finish();
  });
  m.def("set_starter", [](py::function f) {
    auto* kept = new py::function(std::move(f));
    set_starter([kept] { with_python([&] { (*kept)(); }); });
  });
  m.def("set_device_counter", [](py::function f) {
    auto* kept = new py::function(std::move(f));
    set_device_counter([kept] { return with_python([&] { return (*kept)().cast<int>(); }); });
  });
  m.def("platform", &platform);
  m.def("device_count", &num_devices);
  m.def("current_device", &current_device);
  m.def("exchange_device", &exchange_current_device);
  m.def("set_device", &set_current_device);
  m.def("synchronize", [](int index) {
    index = checked_device(index);
    if (is_started()) synchronize(runtime().device(index));
  });
  m.def("sync_debug_mode", [] { return static_cast<int>(sync_debug_mode()); });
  m.def("set_sync_debug_mode",
        [](int mode) { set_sync_debug_mode(static_cast<SyncDebugMode>(mode)); });
  m.def("called_from_several_threads", &Callable::called_from_several_threads);
  m.def("set_compile_only", &Callable::set_compile_only);
  m.def("num_queued", [](int index) -> size_t {
    index = checked_device(index);
    if (!is_started()) return 0;
    std::unique_lock lock(runtime().mutex);
    return runtime().device(index).queued();
  });
  m.def("counters", [] {
    py::dict result;
    counters().snapshot().for_each([&](std::string_view name, std::string_view, uint64_t value) {
      result[py::str(std::string(name))] = value;
    });
    return result;
  });
  m.def("store_stats", [] {
    py::dict result;
    if (!is_started()) return result;
    const StoreStats stats = runtime().store.stats();
    result["resident"] = stats.resident;
    result["resident_bytes"] = stats.resident_bytes;
    result["limit_bytes"] = stats.limit_bytes;
    result["evictions"] = stats.evictions;
    result["reloads"] = stats.reloads;
    return result;
  });

  // What a profiler that runs in this thread must see of work done in another.
  py::class_<CarriedState>(m, "CarriedState")
      .def(py::init<>())
      .def("__enter__", [](CarriedState& s) { s.enter(); })
      .def("__exit__", [](CarriedState& s, const py::args&) { s.leave(); });
  m.def("export_to_host", &export_to_host);
  m.def("import_read_only", &import_read_only);
  m.def("is_read_only_dlpack", [](const py::capsule& capsule) {
    if (std::string_view(capsule.name()) != "dltensor_versioned") return false;
    auto* managed = static_cast<DLManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    return (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
  });

  m.def("default_generator", [](int index) {
    return default_generator(static_cast<c10::DeviceIndex>(checked_device(index)));
  });

  m.def("make_plan", &make_plan);
  m.def("set_planner", [](py::function f) {
    auto* kept = new py::function(std::move(f));
    Callable::set_planner(
        [kept](Callable& callable, const CallKey& key, c10::ArrayRef<c10::IValue> arguments) {
          return with_python([&]() -> std::shared_ptr<const Plan> {
            py::list values;
            for (const c10::IValue& value : arguments) values.append(torch::jit::toPyObject(value));
            return (*kept)(callable.name(), describe(key), values).cast<std::shared_ptr<Plan>>();
          });
        });
  });
  m.def("register_overloads",
        [](const std::vector<std::tuple<std::string, std::vector<int>, bool>>& specs) {
          std::vector<OverloadSpec> list;
          for (const auto& [name, policies, internal] : specs) {
            OverloadSpec spec{name, {}, internal};
            for (int policy : policies) spec.policies.push_back(static_cast<NumberPolicy>(policy));
            list.push_back(std::move(spec));
          }
          register_overloads(list);
        });
  m.def("executed_overloads", [] {
    py::dict result;
    for (const OverloadCount& count : executed_overloads()) {
      result[py::str(count.name)] = count.calls;
    }
    return result;
  });
  m.def("reset_overload_counts", &reset_overload_counts);
  m.def("num_plans", [](const std::string& name) { return overload(name).num_plans(); });
  m.def("has_fallback", &has_fallback);
  m.def("set_fallback_hook", [](py::function f) {
    auto* kept = new py::function(std::move(f));
    set_fallback_hook([kept](const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
      with_python([&] {
        py::list values;
        for (const c10::IValue& value : arguments) values.append(torch::jit::toPyObject(value));
        (*kept)(name, values);
      });
    });
  });
  m.def("storage_use_count", [](const at::Tensor& t) { return storage_of(t)->use_count(); });
  m.def("storage_layout", [](const at::Tensor& t) {
    const Layout& layout = storage_of(t)->layout;
    return py::make_tuple(std::string(dtype_name(layout.dtype)), py::tuple(py::cast(layout.dims)));
  });
  bind_streams(m);
  bind_adaptive(m);
  bind_faults(m);
  bind_host_kernels(m);
  bind_memory(m);
  py::class_<Graph>(m, "Graph")
      .def(py::init<std::string, const std::vector<size_t>&>(), py::arg("name"),
           py::arg("operands") = std::vector<size_t>())
      .def("__call__", &Graph::call)
      .def_property_readonly("num_plans", [](Graph& g) { return g.callable().num_plans(); });
}

}  // namespace
}  // namespace tn::torch_glue

PYBIND11_MODULE(_C, m) { tn::torch_glue::bind(m); }
