// From a key to a launch: find or make the plan, create the outputs, hand it to the device.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "torch/dispatch/plan.h"

namespace tn::torch_glue {

// Something that is called with arguments and planned by Python: an operator or a compiled graph.
class Callable {
 public:
  using Planner = std::function<std::shared_ptr<const Plan>(Callable& callable, const CallKey& key,
                                                            c10::ArrayRef<c10::IValue> arguments)>;

  Callable(std::string name, std::vector<NumberPolicy> policies)
      : name_(std::move(name)), policies_(std::move(policies)) {}

  const std::string& name() const { return name_; }
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  void reset_calls() { calls_.store(0, std::memory_order_relaxed); }
  size_t num_plans() const { return plans_.size(); }

  // Runs it. The results follow the plan's returns.
  void call(c10::ArrayRef<c10::IValue> arguments, std::vector<c10::IValue>& results);

  static void set_planner(Planner planner);
  // Compile-only: calls are planned and compiled, nothing is launched, and results hold no values.
  static void set_compile_only(bool on);
  static bool compile_only();
  // Whether calls came from more than one thread: autograd's, most often.
  static bool called_from_several_threads();

 private:
  bool try_call(c10::ArrayRef<c10::IValue> arguments, std::vector<c10::IValue>& results);

  const std::string name_;
  const std::vector<NumberPolicy> policies_;  // by argument; missing ones are static
  PlanTable plans_;
  std::atomic<uint64_t> calls_{0};
};

}  // namespace tn::torch_glue
