#include "torch/ending.h"

#include <ATen/ops/empty.h>
#include <Python.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <pthread.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <atomic>

#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

std::atomic<pthread_t> g_ending_thread{};

bool interpreter_is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

}  // namespace

void interpreter_ends_here() { g_ending_thread.store(pthread_self()); }

void wait_if_interpreter_ends() {
  if (!interpreter_is_ending()) return;
  const pthread_t ending = g_ending_thread.load();
  if (ending == pthread_t{} || ending == pthread_self()) return;
  for (;;) pause();
}

void let_autograd_finish() {
  c10::InferenceMode no_inference(false);
  c10::AutoGradMode with_grad(true);
  for (int index = 0; index < num_devices(); ++index) {
    const auto options =
        at::TensorOptions().device(c10::DeviceType::PrivateUse1, index).dtype(at::kFloat);
    const at::Tensor x = at::empty({1}, options).set_requires_grad(true);
    torch::autograd::grad({x.view({1})}, {x}, {at::empty({1}, options)});
  }
}

}  // namespace tn::torch_glue
