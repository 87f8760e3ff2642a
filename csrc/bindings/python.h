// Calling Python from C++, and what both hold.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "runtime/kernel.h"
#include "torch/ending.h"

namespace tn::torch_glue {

// While it lives, Dynamo does not trace what this thread runs: a call dispatched from a frame that
// is being compiled would otherwise have its planning traced, too.
class NoTracing {
 public:
  NoTracing() : before_(set_eval_frame()(pybind11::none())) {}
  ~NoTracing() {
    try {
      set_eval_frame()(before_);
    } catch (pybind11::error_already_set& error) {
      error.discard_as_unraisable("torch_neuronx");
    }
  }
  NoTracing(const NoTracing&) = delete;
  NoTracing& operator=(const NoTracing&) = delete;

 private:
  static const pybind11::object& set_eval_frame() {
    static const auto* function = new pybind11::object(
        pybind11::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame"));
    return *function;
  }
  pybind11::object before_;
};

// Runs Python from a dispatched call; its exception keeps its type on the way back.
template <typename F>
auto with_python(F&& f) {
  wait_if_interpreter_ends();
  pybind11::gil_scoped_acquire gil;
  try {
    NoTracing no_tracing;
    return f();
  } catch (pybind11::error_already_set& error) {
    error.restore();
    python_error kept;
    kept.persist();
    throw kept;
  }
}

// Shared by Python while a compile runs; the kernel itself lives as long as the process.
struct KernelHandle {
  Kernel* kernel;
};

}  // namespace tn::torch_glue
