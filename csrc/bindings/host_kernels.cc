#include <pybind11/pybind11.h>

#include <string>

#include "bindings/parts.h"
#include "host/kernels.h"
#include "host/probe.h"
#include "torch/dispatch/attention.h"
#include "torch/runtime.h"

namespace tn::torch_glue {

void bind_host_kernels(pybind11::module_& m) {
  namespace py = pybind11;
  m.def("host_kernels", [] {
    py::list names;
    for (const host::HostKernel& kernel : host::host_kernels()) names.append(kernel.name);
    return names;
  });
  m.def("enable_host_kernels", [](const std::string& compile_options, int num_threads) {
    const Status status = [&] {
      ReleaseGil no_gil;
      return host::enable_host_kernels(runtime().client(), compile_options, num_threads);
    }();
    set_host_attention(status.ok());
    return status.ok() ? std::string() : status.to_string();
  });
}

}  // namespace tn::torch_glue
