// Ranges in PyTorch's profiler for what the device does besides running an operator's kernel.
#pragma once

#include <ATen/record_function.h>

#include <string>

namespace tn::torch_glue {

// A range "neuron::<what> <name>" while it lives; next to nothing when nobody profiles.
class ProfileRange {
 public:
  explicit ProfileRange(const char* what) : function_(at::RecordScope::USER_SCOPE) {
    if (function_.isActive()) [[unlikely]]
      function_.before(what);
  }
  ProfileRange(const char* what, const std::string& name) : function_(at::RecordScope::USER_SCOPE) {
    if (function_.isActive()) [[unlikely]]
      function_.before(std::string(what) + " " + name);
  }
  ProfileRange(const ProfileRange&) = delete;

 private:
  at::RecordFunction function_;
};

}  // namespace tn::torch_glue
