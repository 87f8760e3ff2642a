#include "pjrt/buffer.h"

#include <array>
#include <cstring>
#include <string>

#include "base/counters.h"
#include "pjrt/plugin.h"

namespace tn {
namespace {

constexpr size_t kInlineRank = 16;
// Above this, waking a thread of the plugin costs little beside the copy.
constexpr size_t kCopyHereBytes = 64 * 1024;
// XLA's CPU plugin of 0.81 returns the device's order whatever host layout is
// asked for; the one of 0.106 is the oldest seen to permute.
constexpr int kHonoursHostLayout = 106;

}  // namespace

void Buffer::reset() {
  PJRT_Buffer* buffer = std::exchange(buffer_, nullptr);
  if (buffer == nullptr) return;
  PJRT_Buffer_Destroy_Args args{PJRT_Buffer_Destroy_Args_STRUCT_SIZE, nullptr, buffer};
  // Nothing can be done about a buffer that fails to be freed.
  take_error(api_, api_->PJRT_Buffer_Destroy(&args)).ignore();
}

Status Buffer::check_not_null(const char* call) const {
  if (buffer_ != nullptr) [[likely]]
    return Status();
  return failed_precondition(std::string(call) + " of a null buffer");
}

Result<Event> Buffer::ready_event() const {
  TN_RETURN_IF_ERROR(check_not_null("ready_event"));
  PJRT_Buffer_ReadyEvent_Args args{};
  args.struct_size = PJRT_Buffer_ReadyEvent_Args_STRUCT_SIZE;
  args.buffer = buffer_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Buffer_ReadyEvent(&args)));
  return Event(api_, args.event);
}

Result<Event> Buffer::to_host(void* dst, size_t bytes) const {
  TN_RETURN_IF_ERROR(check_not_null("to_host"));
  TN_ASSIGN_OR_RETURN(const size_t need, size_bytes());
  if (bytes < need) {
    return invalid_argument("to_host: the buffer has " + std::to_string(need) +
                            " bytes, the destination only " + std::to_string(bytes));
  }
  // PJRT takes a null destination as a question for the size.
  if (need == 0) return ready_event();
  if (dst == nullptr) return invalid_argument("to_host: the destination is null");

  TN_ASSIGN_OR_RETURN(const std::span<const int64_t> shape, dims());
  if (api_->pjrt_api_version.minor_version < kHonoursHostLayout && shape.size() > 1 &&
      is_on_host() && !is_row_major()) {
    return unimplemented("to_host: this CPU plugin (API version 0." +
                         std::to_string(api_->pjrt_api_version.minor_version) +
                         ") ignores the host layout, so a buffer that is not row-major would come "
                         "back permuted. Compile without layout_mode attributes, or use a plugin "
                         "of API version 0." +
                         std::to_string(kHonoursHostLayout) + " or later.");
  }
  std::array<int64_t, kInlineRank> inline_order;
  std::vector<int64_t> heap_order;
  int64_t* order = inline_order.data();
  if (shape.size() > kInlineRank) {
    heap_order.resize(shape.size());
    order = heap_order.data();
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    order[i] = static_cast<int64_t>(shape.size() - 1 - i);
  }
  PJRT_Buffer_MemoryLayout layout{};
  layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  layout.tiled.minor_to_major = order;
  layout.tiled.minor_to_major_size = shape.size();

  PJRT_Buffer_ToHostBuffer_Args args{};
  args.struct_size = PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE;
  args.src = buffer_;
  args.host_layout = &layout;
  args.dst = dst;
  args.dst_size = need;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Buffer_ToHostBuffer(&args)));
  counters().d2h_transfers.add();
  counters().d2h_bytes.add(need);
  return Event(api_, args.event);
}

bool Buffer::is_on_host() const {
  if (!TN_PJRT_HAS(api_, PJRT_Buffer_IsOnCpu)) return false;
  PJRT_Buffer_IsOnCpu_Args args{};
  args.struct_size = PJRT_Buffer_IsOnCpu_Args_STRUCT_SIZE;
  args.buffer = buffer_;
  return take_error(api_, api_->PJRT_Buffer_IsOnCpu(&args)).ok() && args.is_on_cpu;
}

bool Buffer::is_row_major() const {
  if (!TN_PJRT_HAS(api_, PJRT_Buffer_GetMemoryLayout)) return false;
  PJRT_Buffer_GetMemoryLayout_Args args{};
  args.struct_size = PJRT_Buffer_GetMemoryLayout_Args_STRUCT_SIZE;
  args.buffer = buffer_;
  if (!take_error(api_, api_->PJRT_Buffer_GetMemoryLayout(&args)).ok() ||
      args.layout.type != PJRT_Buffer_MemoryLayout_Type_Tiled || args.layout.tiled.num_tiles != 0) {
    return false;
  }
  const size_t rank = args.layout.tiled.minor_to_major_size;
  for (size_t i = 0; i < rank; ++i) {
    if (args.layout.tiled.minor_to_major[i] != static_cast<int64_t>(rank - 1 - i)) return false;
  }
  return true;
}

Status Buffer::read(void* dst, size_t bytes) const {
  TN_RETURN_IF_ERROR(check_not_null("read"));
  TN_ASSIGN_OR_RETURN(const size_t need, size_bytes());
  if (need == 0 || dst == nullptr || bytes < need || need > kCopyHereBytes || !can_copy_here()) {
    TN_ASSIGN_OR_RETURN(const Event copied, to_host(dst, bytes));
    return copied.await();
  }
  TN_ASSIGN_OR_RETURN(const Event defined, ready_event());
  TN_RETURN_IF_ERROR(defined.ready() ? defined.status() : defined.await());
  // The reference keeps the memory should another thread donate the buffer
  // meanwhile; the plugin refuses that donation, so it is held for a moment only.
  PJRT_Buffer_IncreaseExternalReferenceCount_Args hold{};
  hold.struct_size = PJRT_Buffer_IncreaseExternalReferenceCount_Args_STRUCT_SIZE;
  hold.buffer = buffer_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Buffer_IncreaseExternalReferenceCount(&hold)));
  const Status status = copy_held(dst, need);
  PJRT_Buffer_DecreaseExternalReferenceCount_Args drop{};
  drop.struct_size = PJRT_Buffer_DecreaseExternalReferenceCount_Args_STRUCT_SIZE;
  drop.buffer = buffer_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Buffer_DecreaseExternalReferenceCount(&drop)));
  return status;
}

bool Buffer::can_copy_here() const {
  return TN_PJRT_HAS(api_, PJRT_Buffer_IncreaseExternalReferenceCount) &&
         TN_PJRT_HAS(api_, PJRT_Buffer_DecreaseExternalReferenceCount) &&
         TN_PJRT_HAS(api_, PJRT_Buffer_OpaqueDeviceMemoryDataPointer) && is_on_host() &&
         is_row_major();
}

Status Buffer::copy_held(void* dst, size_t bytes) const {
  PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args memory{};
  memory.struct_size = PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args_STRUCT_SIZE;
  memory.buffer = buffer_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Buffer_OpaqueDeviceMemoryDataPointer(&memory)));
  std::memcpy(dst, memory.device_memory_ptr, bytes);
  counters().d2h_transfers.add();
  counters().d2h_bytes.add(bytes);
  return Status();
}

Result<Buffer> Buffer::to_device(PJRT_Device* device) const {
  TN_RETURN_IF_ERROR(check_not_null("to_device"));
  if (!TN_PJRT_HAS(api_, PJRT_Buffer_CopyToDevice)) {
    return unimplemented("the plugin has no PJRT_Buffer_CopyToDevice");
  }
  PJRT_Buffer_CopyToDevice_Args args{};
  args.struct_size = PJRT_Buffer_CopyToDevice_Args_STRUCT_SIZE;
  args.buffer = buffer_;
  args.dst_device = device;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Buffer_CopyToDevice(&args)));
  return Buffer(api_, args.dst_buffer);
}

Result<size_t> Buffer::on_device_size() const {
  TN_RETURN_IF_ERROR(check_not_null("on_device_size"));
  PJRT_Buffer_OnDeviceSizeInBytes_Args args{};
  args.struct_size = PJRT_Buffer_OnDeviceSizeInBytes_Args_STRUCT_SIZE;
  args.buffer = buffer_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Buffer_OnDeviceSizeInBytes(&args)));
  return args.on_device_size_in_bytes;
}

bool Buffer::is_deleted() const {
  if (buffer_ == nullptr) return true;
  PJRT_Buffer_IsDeleted_Args args{};
  args.struct_size = PJRT_Buffer_IsDeleted_Args_STRUCT_SIZE;
  args.buffer = buffer_;
  // A buffer that cannot be asked is of no use either.
  if (!take_error(api_, api_->PJRT_Buffer_IsDeleted(&args)).ok()) return true;
  return args.is_deleted;
}

Result<uintptr_t> Buffer::unsafe_pointer() const {
  TN_RETURN_IF_ERROR(check_not_null("unsafe_pointer"));
  if (!TN_PJRT_HAS(api_, PJRT_Buffer_UnsafePointer)) {
    return unimplemented("the plugin has no PJRT_Buffer_UnsafePointer");
  }
  PJRT_Buffer_UnsafePointer_Args args{};
  args.struct_size = PJRT_Buffer_UnsafePointer_Args_STRUCT_SIZE;
  args.buffer = buffer_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Buffer_UnsafePointer(&args)));
  return args.buffer_pointer;
}

Result<DType> Buffer::dtype() const {
  TN_RETURN_IF_ERROR(check_not_null("dtype"));
  PJRT_Buffer_ElementType_Args args{};
  args.struct_size = PJRT_Buffer_ElementType_Args_STRUCT_SIZE;
  args.buffer = buffer_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Buffer_ElementType(&args)));
  const std::optional<DType> dtype = dtype_from_pjrt(args.type);
  if (!dtype) {
    return unimplemented("PJRT element type " + std::to_string(args.type) +
                         " has no PyTorch counterpart");
  }
  return *dtype;
}

Result<std::span<const int64_t>> Buffer::dims() const {
  TN_RETURN_IF_ERROR(check_not_null("dims"));
  PJRT_Buffer_Dimensions_Args args{};
  args.struct_size = PJRT_Buffer_Dimensions_Args_STRUCT_SIZE;
  args.buffer = buffer_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Buffer_Dimensions(&args)));
  return std::span<const int64_t>(args.dims, args.num_dims);
}

Result<size_t> Buffer::size_bytes() const {
  TN_ASSIGN_OR_RETURN(const DType type, dtype());
  TN_ASSIGN_OR_RETURN(const std::span<const int64_t> shape, dims());
  size_t bytes = dtype_size_bytes(type);
  for (int64_t n : shape) bytes *= static_cast<size_t>(n);
  return bytes;
}

}  // namespace tn
