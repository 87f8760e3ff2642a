// The parts of the module that have files of their own.
#pragma once

#include <pybind11/pybind11.h>

namespace tn::torch_glue {

// What c10's streams do not say of ours.
void bind_streams(pybind11::module_& m);

// Statistics, limits, history and snapshots of device memory.
void bind_memory(pybind11::module_& m);

// Adaptive eager: mode, statistics, what compiles fused sequences.
void bind_adaptive(pybind11::module_& m);

// Plugin calls that fail, for tests.
void bind_faults(pybind11::module_& m);

// Handlers that run the host's own kernels.
void bind_host_kernels(pybind11::module_& m);

}  // namespace tn::torch_glue
