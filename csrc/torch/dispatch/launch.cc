#include "torch/dispatch/launch.h"

#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided.h>

#include <pthread.h>

#include <atomic>
#include <utility>

#include "runtime/batches.h"
#include "runtime/recorder.h"
#include "torch/adaptive.h"
#include "torch/generator.h"
#include "torch/memory.h"
#include "torch/profile.h"
#include "torch/runtime.h"
#include "torch/shared_memory.h"
#include "torch/streams.h"

namespace tn::torch_glue {
namespace {

Callable::Planner& planner() {
  static Callable::Planner* instance = new Callable::Planner;
  return *instance;
}

c10::IValue build_return(const std::vector<ReturnPlan>& returns, size_t& next,
                         const std::vector<at::Tensor>& outputs,
                         c10::ArrayRef<c10::IValue> arguments) {
  const ReturnPlan& plan = returns[next++];
  switch (plan.kind) {
    case ReturnPlan::Kind::kOutput:
      return outputs[plan.index];
    case ReturnPlan::Kind::kArgument:
      return arguments[plan.index];
    case ReturnPlan::Kind::kView: {
      const at::Tensor& base = arguments[plan.index].toTensor();
      return at::as_strided(base, plan.sizes, plan.strides, base.storage_offset() + plan.offset);
    }
    case ReturnPlan::Kind::kOutputView:
      return at::as_strided(outputs[plan.index], plan.sizes, plan.strides, plan.offset);
    case ReturnPlan::Kind::kUndefined:
      return at::Tensor();
    case ReturnPlan::Kind::kInt:
      return plan.index;
    case ReturnPlan::Kind::kList: {
      std::vector<at::Tensor> list;
      list.reserve(plan.index);
      for (int64_t i = 0; i < plan.index; ++i) {
        list.push_back(build_return(returns, next, outputs, arguments).toTensor());
      }
      return list;
    }
  }
  return {};
}

// "aten::add.Tensor(float32[2, 3], float32[3])": what an error says of a call.
std::string describe_call(const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  constexpr size_t kMostTensors = 8;
  std::string text = name + "(";
  size_t count = 0;
  auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || count++ >= kMostTensors) return;
    if (count > 1) text += ", ";
    const std::optional<DType> dtype = find_dtype(tensor.scalar_type());
    text += std::string(dtype ? dtype_name(*dtype) : "other") + "[";
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      text += (i ? ", " : "") + std::to_string(tensor.size(i));
    }
    text += "]";
  };
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      add(argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector()) add(tensor);
    }
  }
  if (count > kMostTensors) text += ", and " + std::to_string(count - kMostTensors) + " more";
  return text + ")";
}

}  // namespace

namespace {
std::atomic<pthread_t> g_first_thread{};
std::atomic<bool> g_several_threads{false};
std::atomic<bool> g_compile_only{false};

void note_thread() {
  const pthread_t self = pthread_self();
  pthread_t first = g_first_thread.load(std::memory_order_relaxed);
  if (first == self) return;
  if (first == pthread_t{} && g_first_thread.compare_exchange_strong(first, self)) return;
  g_several_threads.store(true, std::memory_order_relaxed);
}
}  // namespace

void Callable::set_compile_only(bool on) { g_compile_only.store(on, std::memory_order_relaxed); }

bool Callable::compile_only() { return g_compile_only.load(std::memory_order_relaxed); }

bool Callable::called_from_several_threads() {
  return g_several_threads.load(std::memory_order_relaxed);
}

void Callable::set_planner(Planner p) { planner() = std::move(p); }

void Callable::call(c10::ArrayRef<c10::IValue> arguments, std::vector<c10::IValue>& results) {
  calls_.fetch_add(1, std::memory_order_relaxed);
  note_thread();
  with_memory_retry([&] {
    while (!try_call(arguments, results)) {
    }
  });
}

// One attempt. False: something was made ready without the lock (a plan, an executable, a resized
// argument), and the call starts over, since another thread may have changed what the key saw.
bool Callable::try_call(c10::ArrayRef<c10::IValue> arguments, std::vector<c10::IValue>& results) {
  Runtime& rt = runtime();
  StackContext stack;
  if (is_recording_memory()) [[unlikely]]
    stack = gather_stack(RecordStacks::kState);
  bool fusing = false;
  bool batching = false;
  std::vector<at::Tensor> outputs;  // released after the lock, should something throw
  std::unique_lock lock(rt.mutex);
  CallKey key;
  for (size_t i = 0; i < arguments.size(); ++i) {
    key.add(arguments[i], i < policies_.size() ? policies_[i] : NumberPolicy::kStatic);
  }
  key.finish();
  if (!key.device) key.device = &rt.device(current_device());
  Device& device = *key.device;
  const uint64_t hash = key.hash();
  const Plan* plan = plans_.find(key, hash);
  if (!plan) {
    lock.unlock();
    ProfileRange range("neuron::plan", name_);
    std::shared_ptr<const Plan> made = planner()(*this, key, arguments);
    if (made->kernel) made->kernel->set_description(describe_call(name_, arguments));
    if (!made->resizes.empty()) {
      for (const auto& [argument, sizes] : made->resizes) {
        at::native::resize_output(arguments[argument].toTensor(), sizes);
      }
      return false;
    }
    lock.lock();
    if (!plans_.find(key, hash)) plans_.insert(key, hash, std::move(made));
    return false;
  }

  c10::SmallVector<DeviceStorage*, 8> storages;
  outputs.reserve(plan->outputs.size());
  for (const OutputPlan& output : plan->outputs) {
    Ref<DeviceStorage> storage = place_storage(device, output.bytes, output.layout, stack);
    storages.push_back(storage.get());
    outputs.push_back(make_tensor(std::move(storage), output.dtype, output.sizes, output.strides));
  }
  if (plan->kernel && !compile_only()) {
    charge_temporaries(device, *plan->kernel);
    c10::SmallVector<Ref<DeviceBuffer>, 8> numbers;
    c10::SmallVector<LaunchParam, 24> params;
    for (const Parameter& parameter : key.parameters) {
      if (parameter.storage) {
        params.push_back({parameter.storage, nullptr});
        continue;
      }
      Result<Ref<DeviceBuffer>> number =
          device.number(parameter.dtype, parameter.bits, parameter.high_bits);
      check(number.status(), name_.c_str());
      params.push_back({nullptr, number.value().get()});
      numbers.push_back(std::move(number).value());
    }
    Launch launch;
    launch.kernel = plan->kernel;
    launch.params = {params.data(), params.size()};
    launch.outputs = {storages.data(), storages.size()};
    Stream& stream = current_stream(device);
    launch.stream = &stream;
    const EagerMode mode = eager_mode();
    const bool blocking = rt.options().launch_blocking || mode == EagerMode::kBlocking;
    launch.may_hold = mode == EagerMode::kAdaptive && !blocking && !any_shared_memory() &&
                      !at::globalContext().deterministicAlgorithms();
    NeuronGenerator* generator = nullptr;
    if (plan->uses_rng) {
      launch.uses_rng = true;
      generator =
          &generator_or_default(key.generator, static_cast<c10::DeviceIndex>(device.index()));
      std::tie(launch.seed, launch.offset) = generator->reserve(plan->rng_increment);
    }
    ProfileRange range("neuron::launch", name_);
    if (!device.submit(launch)) {
      if (generator) generator->give_back({launch.seed, launch.offset}, plan->rng_increment);
      lock.unlock();
      check(plan->kernel->reload(), name_.c_str());
      return false;
    }
    fusing = device.recorder().has_requests();
    batching = device.batches().due();
    if (blocking || any_shared_memory()) {
      lock.unlock();
      // A kernel that is still compiled does not say yet what it writes.
      if (blocking || plan->kernel->state() == KernelState::kPending) synchronize(stream);
      for (int32_t w : plan->kernel->signature().writes) {
        if (key.parameters[w].storage) settle_shared_memory(*key.parameters[w].storage);
      }
    }
  }
  if (lock.owns_lock()) lock.unlock();
  if (fusing) [[unlikely]]
    fuse(device);
  if (batching) [[unlikely]]
    compile_batches(device);
  if (plan->keeps_origin || stack) [[unlikely]]
    note_origin(outputs, name_);
  results.clear();
  for (size_t next = 0; next < plan->returns.size();) {
    results.push_back(build_return(plan->returns, next, outputs, arguments));
  }
  return true;
}

}  // namespace tn::torch_glue
