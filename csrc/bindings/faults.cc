#include "pjrt/faults.h"

#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#include "bindings/parts.h"

namespace tn::torch_glue {

void bind_faults(pybind11::module_& m) {
  namespace py = pybind11;
  m.def(
      "inject_fault",
      [](const std::string& call, const std::string& message, int code, uint64_t after,
         uint64_t times) {
        const Status status =
            inject_fault({call, static_cast<StatusCode>(code), message, after, times});
        if (!status.ok()) throw std::invalid_argument(status.message());
      },
      py::arg("call"), py::arg("message"),
      py::arg("code") = static_cast<int>(StatusCode::kInternal), py::arg("after") = 0,
      py::arg("times") = 1);
  m.def("clear_faults", &clear_faults);
}

}  // namespace tn::torch_glue
