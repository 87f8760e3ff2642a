// Device memory with a shape and an element type, owned by a plugin.

#ifndef TN_PJRT_BUFFER_H_
#define TN_PJRT_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "dtype.h"
#include "event.h"
#include "pjrt_c_api.h"

namespace tn {

// Owns a PJRT_Buffer. Destroying it while work that uses it is in flight is
// safe: the plugin keeps the memory until then. Its client must outlive it.
// Const calls are thread-safe on a non-null buffer; on a null buffer those that
// can fail return FAILED_PRECONDITION.
class Buffer {
 public:
  Buffer() = default;
  // Takes ownership of `buffer`, which may be null.
  Buffer(const PJRT_Api* api, PJRT_Buffer* buffer) : api_(api), buffer_(buffer) {}
  Buffer(Buffer&& other) noexcept
      : api_(other.api_), buffer_(std::exchange(other.buffer_, nullptr)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      reset();
      api_ = other.api_;
      buffer_ = std::exchange(other.buffer_, nullptr);
    }
    return *this;
  }
  ~Buffer() {
    if (buffer_ != nullptr) reset();
  }

  PJRT_Buffer* get() const { return buffer_; }
  const PJRT_Api* api() const { return api_; }
  bool is_null() const { return buffer_ == nullptr; }
  // Gives up ownership.
  PJRT_Buffer* release() { return std::exchange(buffer_, nullptr); }
  // Destroys the buffer.
  void reset();

  // Ready when the contents are defined, or with the error that prevented it.
  Result<Event> ready_event() const;
  // Starts a copy of the whole contents to `dst`, dense and row-major whatever
  // the device's layout is. `dst` must stay alive until the event is ready.
  // `bytes` must be size_bytes() or more (INVALID_ARGUMENT otherwise). That a
  // buffer was donated shows here or in the event, depending on the plugin.
  // UNIMPLEMENTED for a plugin that would permute the contents (0.81, only for
  // programs that ask for such a layout).
  Result<Event> to_host(void* dst, size_t bytes) const;
  // Waits until the contents are defined and copies them to `dst`; the same
  // contract as to_host otherwise. Small buffers in host memory are copied by
  // this thread, which for a scalar is about a hundred times quicker than
  // to_host and await (those wake a thread of the plugin). A donation by another
  // thread in that moment fails.
  Status read(void* dst, size_t bytes) const;
  // Starts a copy to another device of the same client; the new buffer is ready when the contents
  // are there. UNIMPLEMENTED where the plugin has no such call.
  Result<Buffer> to_device(PJRT_Device* device) const;
  // Bytes that the plugin says it uses, padding included.
  Result<size_t> on_device_size() const;
  // True after donation or an explicit deletion; true for a null buffer.
  bool is_deleted() const;
  // Device address, for diagnostics and tests of donation. UNIMPLEMENTED where
  // the plugin has no such call.
  Result<uintptr_t> unsafe_pointer() const;

  Result<DType> dtype() const;
  // Logical dimensions, no padding. The span lives as long as the buffer.
  Result<std::span<const int64_t>> dims() const;
  // Bytes of the dense contents: elements times item size.
  Result<size_t> size_bytes() const;

 private:
  Status check_not_null(const char* call) const;
  // Both false when the plugin cannot say.
  bool is_on_host() const;
  bool is_row_major() const;
  // Whether read() may copy the memory itself.
  bool can_copy_here() const;
  // The copy of read(), while a reference holds the memory.
  Status copy_held(void* dst, size_t bytes) const;

  const PJRT_Api* api_ = nullptr;
  PJRT_Buffer* buffer_ = nullptr;
};

}  // namespace tn

#endif  // TN_PJRT_BUFFER_H_
