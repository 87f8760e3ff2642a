#include "torch/dispatch/overloads.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/counters.h"
#include "torch/dispatch/ranges.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

std::map<std::string, std::unique_ptr<Callable>>& callables() {
  static auto* instance = new std::map<std::string, std::unique_ptr<Callable>>;
  return *instance;
}

FallbackHook& fallback_hook() {
  static FallbackHook* instance = new FallbackHook;
  return *instance;
}

std::string full_name(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

std::string packet(const std::string& name) { return name.substr(0, name.find('.')); }

// What CPU's TensorIterator refuses: writing where one element lies several times, or over a part
// of an input. These operators take an expanded target, with a warning on CPU, or none, and a
// value that is an element of the target.
bool allows_overlap(const std::string& name) {
  static const std::set<std::string> names = {"aten::masked_fill_", "aten::index_fill_"};
  return names.count(packet(name)) != 0;
}

// These take an expanded target too: CPU runs them without TensorIterator, or lets it resize the
// result itself.
bool allows_expanded_target(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::all",    "aten::amax",   "aten::amin", "aten::any",
      "aten::argmax", "aten::argmin", "aten::full", "aten::linalg_vector_norm",
      "aten::nansum", "aten::norm",   "aten::ones", "aten::prod",
      "aten::std",    "aten::sum",    "aten::tril", "aten::tril_",
      "aten::triu",   "aten::triu_",  "aten::var",  "aten::zero_",
      "aten::zeros"};
  return name == "aten::fill_.Scalar" || names.count(packet(name)) != 0;
}

// What of an overload's arguments is checked before each call.
struct Roles {
  std::vector<size_t> written;
  std::optional<size_t> generator;
  // The `check_errors` of factorisations whose last result, info, says where a matrix was singular.
  std::optional<size_t> check_errors;
  bool inputs_may_overlap;
  bool may_be_expanded;
};

Roles roles_of(const std::string& name) {
  Roles roles{{}, {}, {}, allows_overlap(name), allows_expanded_target(name)};
  const auto dot = name.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema(
      {packet(name), dot == std::string::npos ? "" : name.substr(dot + 1)});
  if (!op) return roles;
  const auto& arguments = op->schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].alias_info() && arguments[i].alias_info()->isWrite()) {
      roles.written.push_back(i);
    }
    if (arguments[i].name() == "generator") roles.generator = i;
    if (arguments[i].name() == "check_errors") roles.check_errors = i;
  }
  return roles;
}

void check_overlap(const Roles& roles, c10::ArrayRef<c10::IValue> arguments) {
  if (roles.inputs_may_overlap) return;
  for (const size_t w : roles.written) {
    if (!arguments[w].isTensor()) continue;
    const at::Tensor& target = arguments[w].toTensor();
    if (!target.defined()) continue;
    if (!roles.may_be_expanded) at::assert_no_internal_overlap(target);
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (i != w && arguments[i].isTensor() && arguments[i].toTensor().defined()) {
        at::assert_no_partial_overlap(target, arguments[i].toTensor());
      }
      // The tensors of `cat` and `stack` lie in other places than their parts of the result.
      if (i != w && arguments[i].isTensorList()) {
        for (const at::Tensor& part : arguments[i].toTensorVector()) {
          at::assert_no_overlap(target, part);
        }
      }
    }
  }
}

// A generator of this device brings calls on other devices' tensors here.
void check_generator(const Roles& roles, c10::ArrayRef<c10::IValue> arguments) {
  if (!roles.generator || arguments[*roles.generator].isNone()) return;
  const at::Tensor* first = nullptr;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    if (argument.toTensor().is_privateuseone()) return;
    if (!first) first = &argument.toTensor();
  }
  TORCH_CHECK(!first, "Expected a '", first->device().type(),
              "' device type for generator but found '",
              arguments[*roles.generator].toGenerator().device().type(), "'");
}

// A CPU tensor of no dimensions is a number, and no number can be written.
void check_written(const Roles& roles, c10::ArrayRef<c10::IValue> arguments) {
  for (const size_t w : roles.written) {
    if (!arguments[w].isTensor() || !arguments[w].toTensor().defined()) continue;
    const at::Tensor& target = arguments[w].toTensor();
    TORCH_CHECK(target.is_privateuseone(),
                "Expected all tensors to be on the same device, but found at least two devices, "
                "neuron and ",
                target.device(), "! A ", target.device().type(),
                " tensor cannot be written by an operator on neuron tensors; move one of them.");
  }
}

// How CPU's errors call a factorisation: "linalg.inv_ex", "torch.linalg.lu_factor_ex".
std::string name_of_factorisation(const std::string& name) {
  const std::string which = packet(name).substr(std::string_view("aten::linalg_").size());
  const bool is_short = which == "inv_ex" || which == "cholesky_ex";
  return (is_short ? "linalg." : "torch.linalg.") + which;
}

class OverloadKernel final : public c10::OperatorKernel {
 public:
  explicit OverloadKernel(Callable* callable)
      : callable_(callable),
        roles_(roles_of(callable->name())),
        check_values_(find_argument_check(callable->name())) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const size_t num_arguments = op.schema().arguments().size();
    const auto first = stack->size() - num_arguments;
    const c10::ArrayRef<c10::IValue> arguments(stack->data() + first, num_arguments);
    check_generator(roles_, arguments);
    check_written(roles_, arguments);
    check_overlap(roles_, arguments);
    if (check_values_) check_values_(arguments);
    std::vector<c10::IValue> results;
    callable_->call(arguments, results);
    if (roles_.check_errors && arguments[*roles_.check_errors].toBool()) {
      at::_linalg_check_errors(results.back().toTensor(), name_of_factorisation(callable_->name()),
                               arguments[0].toTensor().dim() == 2);
    }
    stack->erase(stack->begin() + static_cast<int64_t>(first), stack->end());
    for (c10::IValue& result : results) stack->push_back(std::move(result));
  }

 private:
  Callable* const callable_;
  const Roles roles_;
  const ArgumentCheck check_values_;
};

// Their results are quantized tensors, which the device does not have: CPU's could not be copied
// back.
bool makes_quantized(const std::string& name) {
  static const std::set<std::string> names = {"aten::quantize_per_tensor",
                                              "aten::quantize_per_tensor_dynamic",
                                              "aten::quantize_per_channel",
                                              "aten::_empty_affine_quantized",
                                              "aten::_empty_per_channel_affine_quantized",
                                              "aten::_make_per_tensor_quantized_tensor",
                                              "aten::_make_per_channel_quantized_tensor"};
  return names.count(name) != 0;
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  record_fallback(op, *stack, c10::DispatchKey::CPU);
  at::native::cpu_fallback(op, stack);
}

// PyTorch registers one kernel of these for every device, and it reads its arguments through host
// pointers: on this device the process would end.
constexpr const char* kReadsHostMemory[] = {"_saturate_weight_to_fp16",
                                            "choose_qparams_optimized",
                                            "_grid_sampler_2d_cpu_fallback",
                                            "_grid_sampler_2d_cpu_fallback_backward",
                                            "_sobol_engine_draw",
                                            "_sobol_engine_ff_",
                                            "_sobol_engine_scramble_",
                                            "_sobol_engine_initialize_state_"};

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : kReadsHostMemory) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

}  // namespace

bool can_fall_back(const c10::OperatorHandle& op, c10::DispatchKey cpu_key) {
  return op.hasComputedKernelForDispatchKey(cpu_key) && !makes_quantized(op.operator_name().name);
}

bool has_fallback(const std::string& name) {
  const auto dot = name.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  return op && (can_fall_back(*op, c10::DispatchKey::CPU) ||
                can_fall_back(*op, c10::DispatchKey::SparseCPU));
}

void record_fallback(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                     c10::DispatchKey cpu_key) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      can_fall_back(op, cpu_key), full_name(op),
      " has neither a lowering rule for the neuron device nor a kernel that could run it on the "
      "CPU instead (dispatch key ",
      cpu_key,
      "). Replace the operator, or register a kernel for it with torch.library.impl and the "
      "dispatch key \"PrivateUse1\".");
  const size_t num_arguments = op.schema().arguments().size();
  if (fallback_hook()) {
    fallback_hook()(full_name(op), c10::ArrayRef<c10::IValue>(
                                       stack.data() + stack.size() - num_arguments, num_arguments));
  }
  counters().fallbacks.add();
}

void register_overloads(const std::vector<OverloadSpec>& specs) {
  const auto implementations = [](const char* space) {
    return new torch::Library(torch::Library::IMPL, space, c10::DispatchKey::PrivateUse1, __FILE__,
                              __LINE__);
  };
  static auto* aten = implementations("aten");
  static auto* own = implementations("neuron");
  for (const OverloadSpec& spec : specs) {
    auto callable = std::make_unique<Callable>(spec.name, spec.policies);
    if (!spec.internal) {
      torch::Library* library = spec.name.rfind("neuron::", 0) == 0 ? own : aten;
      library->impl(spec.name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                           std::make_unique<OverloadKernel>(callable.get())));
    }
    callables()[spec.name] = std::move(callable);
  }
}

Callable& overload(const std::string& name) {
  auto it = callables().find(name);
  TORCH_CHECK(it != callables().end(), name, " is not in the lowering table");
  return *it->second;
}

std::vector<OverloadCount> executed_overloads() {
  std::vector<OverloadCount> counts;
  for (const auto& [name, callable] : callables()) {
    if (uint64_t calls = callable->calls()) counts.push_back({name, calls});
  }
  return counts;
}

void reset_overload_counts() {
  for (auto& [name, callable] : callables()) callable->reset_calls();
}

void set_fallback_hook(FallbackHook hook) { fallback_hook() = std::move(hook); }

}  // namespace tn::torch_glue
