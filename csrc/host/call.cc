#include "host/call.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <charconv>

namespace tn::host {
namespace {

c10::ScalarType scalar_type(XLA_FFI_DataType dtype) {
  switch (dtype) {
    case XLA_FFI_DataType_PRED:
      return c10::kBool;
    case XLA_FFI_DataType_U8:
      return c10::kByte;
    case XLA_FFI_DataType_S8:
      return c10::kChar;
    case XLA_FFI_DataType_S16:
      return c10::kShort;
    case XLA_FFI_DataType_S32:
      return c10::kInt;
    case XLA_FFI_DataType_S64:
      return c10::kLong;
    case XLA_FFI_DataType_F16:
      return c10::kHalf;
    case XLA_FFI_DataType_BF16:
      return c10::kBFloat16;
    case XLA_FFI_DataType_F32:
      return c10::kFloat;
    case XLA_FFI_DataType_F64:
      return c10::kDouble;
    default:
      TORCH_CHECK(false, "host kernels do not take XLA's element type ", static_cast<int>(dtype));
  }
}

at::Tensor view(const void* value) {
  const auto* buffer = static_cast<const XLA_FFI_Buffer*>(value);
  const c10::IntArrayRef sizes(buffer->dims, static_cast<size_t>(buffer->rank));
  const auto options = at::TensorOptions().dtype(scalar_type(buffer->dtype)).device(c10::kCPU);
  if (c10::multiply_integers(sizes) == 0) return at::empty(sizes, options);
  return at::from_blob(buffer->data, sizes, options);
}

void check_index(int64_t index, int64_t size, const char* what) {
  TORCH_CHECK(0 <= index && index < size, "the call has ", size, " ", what, ", no number ", index);
}

}  // namespace

at::Tensor Call::arg(int64_t index) const {
  check_index(index, frame_->args.size, "operands");
  TORCH_CHECK(frame_->args.types[index] == XLA_FFI_ArgType_BUFFER, "operand ", index,
              " is no buffer");
  return view(frame_->args.args[index]);
}

at::Tensor Call::result(int64_t index) const {
  check_index(index, frame_->rets.size, "results");
  TORCH_CHECK(frame_->rets.types[index] == XLA_FFI_RetType_BUFFER, "result ", index,
              " is no buffer");
  return view(frame_->rets.rets[index]);
}

void Call::give(int64_t index, const at::Tensor& value) const {
  at::Tensor to = result(index);
  TORCH_CHECK(to.sizes() == value.sizes() && to.scalar_type() == value.scalar_type(), "result ",
              index, " is ", to.scalar_type(), to.sizes(), ", the kernel gave ",
              value.scalar_type(), value.sizes());
  to.copy_(value);
}

const void* Call::attribute(std::string_view name, XLA_FFI_AttrType type) const {
  const XLA_FFI_Attrs& all = frame_->attrs;
  for (int64_t i = 0; i < all.size; ++i) {
    if (std::string_view(all.names[i]->ptr, all.names[i]->len) != name) continue;
    TORCH_CHECK(all.types[i] == type, "the attribute '", name, "' has another type");
    return all.attrs[i];
  }
  TORCH_CHECK(false, "the call has no attribute '", name, "'");
}

int64_t Call::integer(std::string_view name) const {
  const auto* scalar = static_cast<const XLA_FFI_Scalar*>(attribute(name, XLA_FFI_AttrType_SCALAR));
  TORCH_CHECK(scalar->dtype == XLA_FFI_DataType_S64, "the attribute '", name, "' is no int64");
  return *static_cast<const int64_t*>(scalar->value);
}

std::vector<int64_t> Call::integers(std::string_view name) const {
  const auto* span = static_cast<const XLA_FFI_ByteSpan*>(attribute(name, XLA_FFI_AttrType_STRING));
  std::vector<int64_t> values;
  const char* at = span->ptr;
  const char* const end = span->ptr + span->len;
  while (at != end) {
    int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    TORCH_CHECK(error == std::errc() && (next == end || *next == ','), "the attribute '", name,
                "' is no list of integers");
    values.push_back(value);
    at = next == end ? end : next + 1;
  }
  return values;
}

}  // namespace tn::host
