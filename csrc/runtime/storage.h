// Device storage: what a c10 storage of this device points at.
//
// A storage has an address from the moment it exists and a buffer from the moment something was
// launched into it. Mutation replaces the buffer, so every alias sees the new one. `layout` is what
// the buffer will be after all launches issued so far; `buffer` is what it is now (decision D5).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pjrt/buffer.h"
#include "pjrt/dtype.h"

namespace tn {

class Device;
class Stream;
struct Block;

// Set in a child forked after the runtime was started. The plugin's threads are not there: device
// objects that the child inherited are dropped without calling the plugin or taking a lock.
inline std::atomic<bool>& forked() {
  static std::atomic<bool> flag{false};
  return flag;
}

// Intrusive reference; T has `ref()` and `unref()`.
template <typename T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* p) : p_(p) {
    if (p_) p_->ref();
  }
  Ref(const Ref& o) : Ref(o.p_) {}
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() {
    if (p_) p_->unref();
  }
  T* get() const { return p_; }
  T* operator->() const { return p_; }
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }

 private:
  T* p_ = nullptr;
};

template <typename Derived>
class RefCounted {
 public:
  void ref() { count_.fetch_add(1, std::memory_order_relaxed); }
  // True if it was the last.
  bool unref() {
    if (count_.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
    delete static_cast<Derived*>(this);
    return true;
  }
  int64_t use_count() const { return count_.load(std::memory_order_acquire); }

 private:
  std::atomic<int64_t> count_{0};
};

// A plugin buffer shared by whoever needs it until a launch is over.
class DeviceBuffer : public RefCounted<DeviceBuffer> {
 public:
  explicit DeviceBuffer(Buffer buffer) : buffer_(std::move(buffer)) {}
  ~DeviceBuffer() {
    if (forked().load(std::memory_order_relaxed)) buffer_.release();
  }
  PJRT_Buffer* get() const { return buffer_.get(); }
  Buffer& buffer() { return buffer_; }

 private:
  Buffer buffer_;
};

// Dtype and dimensions of a buffer.
struct Layout {
  DType dtype = DType::kU8;
  std::vector<int64_t> dims;

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    return n;
  }
  bool operator==(const Layout&) const = default;
};

// Host memory in which a storage's contents lie, shared with somebody outside (DLPack).
struct SharedMemory {
  SharedMemory() { ++count(); }
  ~SharedMemory() { --count(); }
  SharedMemory(const SharedMemory&) = delete;
  // How many there are: launches look at their writes only while there is one.
  static std::atomic<int>& count() {
    static std::atomic<int> instance{0};
    return instance;
  }

  void* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<void> owner;
  // Set for imported memory that nobody may write: the first write leaves it. Holding the buffer
  // keeps it from being donated.
  Ref<DeviceBuffer> read_only;
  // Of exported memory: how many outside look at it.
  std::atomic<int> exports{0};
};

// Guarded by the device's mutex, but for the reference count.
class DeviceStorage : public RefCounted<DeviceStorage> {
 public:
  // Takes over `block`, which is null for no bytes.
  DeviceStorage(Device* device, Block* block, size_t bytes);
  ~DeviceStorage();
  DeviceStorage(const DeviceStorage&) = delete;
  DeviceStorage& operator=(const DeviceStorage&) = delete;

  // Drops the reference of a tensor's data pointer. If launches still hold others, the memory
  // counts as allocated and no longer as active. The runtime's lock must not be held.
  void unref_tensor();

  Device* const device;
  Block* block;
  uintptr_t address;
  size_t bytes;
  Layout layout;
  Ref<DeviceBuffer> buffer;
  // Launches issued and not yet made that write here.
  int pending_writes = 0;
  // The stream whose queue holds the last use of it, and as which ticket; stays when it is
  // launched.
  Stream* queued_on = nullptr;
  uint64_t queued_as = 0;
  // Set when the buffer was lost; reading it raises this.
  std::shared_ptr<const std::string> failure;
  // Set while the contents are bound to host memory that others see: writes end up there.
  std::shared_ptr<SharedMemory> shared;

  // The holding of adaptive eager that saw this storage last, and as which slot; whether it has it.
  uint64_t held_serial = 0;
  int32_t held_slot = 0;
  std::atomic<bool> held{false};

  // The key being built that saw this storage last, and as which parameter: finds arguments that
  // share a storage without comparing all pairs.
  uint64_t seen_by = 0;
  int32_t seen_as = 0;

  // Nothing was written yet and nothing is going to be.
  bool is_empty() const { return !buffer && pending_writes == 0 && !failure; }
};

}  // namespace tn
