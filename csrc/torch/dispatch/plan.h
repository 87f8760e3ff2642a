// A plan: what one key does. Made once by Python at a miss, followed at every later call.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/kernel.h"
#include "torch/dispatch/key.h"

namespace tn::torch_glue {

// A tensor that the call creates. `layout` is the buffer's, dimensions from outermost to innermost.
struct OutputPlan {
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // empty: contiguous
  size_t bytes;
  Layout layout;
};

// What the call returns, in order.
struct ReturnPlan {
  enum class Kind : uint8_t {
    kOutput,      // index: into the outputs
    kArgument,    // index: an argument of the call (in-place, out=)
    kView,        // of a tensor argument: sizes, strides, offset from the argument's own
    kOutputView,  // of an output: sizes, strides, offset
    kUndefined,   // None
    kList,        // index: how many of the following returns it holds
    kInt,         // index: the value
  };
  Kind kind = Kind::kOutput;
  int64_t index = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
};

struct Plan {
  Kernel* kernel = nullptr;  // null: nothing to launch (all results are empty)
  std::vector<OutputPlan> outputs;
  std::vector<ReturnPlan> returns;
  // out= arguments that must be resized before the call can be planned: argument, sizes.
  std::vector<std::pair<int, std::vector<int64_t>>> resizes;
  uint64_t rng_increment = 0;
  bool uses_rng = false;
  bool keeps_origin = false;  // an output is so large that reports name the line it came from
  bool checked = false;       // the kernel has index checks: remember the Python line
};

// Plans by whole key. Not thread-safe: Runtime::mutex guards it. Plans live as long as the process.
class PlanTable {
 public:
  const Plan* find(const CallKey& key, uint64_t hash) const {
    auto [it, end] = plans_.equal_range(hash);
    for (; it != end; ++it) {
      const std::vector<uint64_t>& words = it->second.words;
      if (words.size() == key.words.size() &&
          std::equal(words.begin(), words.end(), key.words.begin())) {
        return it->second.plan.get();
      }
    }
    return nullptr;
  }
  void insert(const CallKey& key, uint64_t hash, std::shared_ptr<const Plan> plan) {
    plans_.emplace(hash, Item{{key.words.begin(), key.words.end()}, std::move(plan)});
  }
  size_t size() const { return plans_.size(); }

 private:
  struct Item {
    std::vector<uint64_t> words;
    std::shared_ptr<const Plan> plan;
  };
  std::unordered_multimap<uint64_t, Item> plans_;
};

}  // namespace tn::torch_glue
