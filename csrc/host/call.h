// One call of a custom-call handler, seen as ATen sees it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace tn::host {

// Views a call frame of XLA's FFI; valid during the call. Everything here throws (c10::Error) for a
// frame that is not what the kernel expects.
class Call {
 public:
  explicit Call(XLA_FFI_CallFrame* frame) : frame_(frame) {}

  int64_t num_args() const { return frame_->args.size; }
  // Contiguous CPU tensors over the plugin's memory: an operand, which must not be written, or a
  // result, which has no values yet. Programs ask for row-major operands and results.
  at::Tensor arg(int64_t index) const;
  at::Tensor result(int64_t index) const;
  // Copies what a kernel gave to a result of the same shape and dtype.
  void give(int64_t index, const at::Tensor& value) const;

  // Attributes: an integer, or a list of them (in the program, one text with commas).
  int64_t integer(std::string_view name) const;
  std::vector<int64_t> integers(std::string_view name) const;

 private:
  const void* attribute(std::string_view name, XLA_FFI_AttrType type) const;

  XLA_FFI_CallFrame* frame_;
};

}  // namespace tn::host
