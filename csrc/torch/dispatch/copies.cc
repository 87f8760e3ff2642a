// Copies between host and device and within the device, and reading one value.

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_copy_from_native.h>
#include <torch/library.h>

#include <cstring>

#include "torch/dispatch/overloads.h"
#include "torch/layout.h"
#include "torch/pinned.h"
#include "torch/profile.h"
#include "torch/python_line.h"
#include "torch/runtime.h"
#include "torch/shared_memory.h"
#include "torch/streams.h"

namespace tn::torch_glue {
namespace {

bool on_device(const at::Tensor& tensor) { return tensor.device().is_privateuseone(); }

// The tensor fills its buffer, in the buffer's memory order.
bool fills_buffer(const at::Tensor& tensor) {
  const DeviceStorage* storage = storage_of(tensor);
  return tensor.storage_offset() == 0 && tensor.numel() == storage->layout.numel() &&
         storage->layout.dtype == to_dtype(tensor.scalar_type()) &&
         (tensor.is_contiguous() || tensor.is_non_overlapping_and_dense());
}

// Bytes of a tensor that fills its buffer, to `destination`. Waits for the current stream, and
// raises its errors.
void read_buffer(const at::Tensor& tensor, void* destination, size_t bytes) {
  if (Callable::compile_only()) {
    raise({"RuntimeError",
           "TORCH_NEURONX_COMPILE_ONLY=1: programs are compiled and not run, so this tensor has no "
           "values to read. Unset the variable to run."});
  }
  note_synchronizing();
  ProfileRange range("neuron::copy_to_host");
  Device& device = neuron_device(tensor);
  DeviceStorage* storage = storage_of(tensor);
  Stream& stream = current_stream(device);
  std::optional<DeviceError> error;
  Status status;
  std::shared_ptr<const std::string> failure;
  {
    ReleaseGil no_gil;
    std::unique_lock lock(runtime().mutex);
    Device::drain_uses(*storage, stream, lock);
    failure = storage->failure;
    if (!failure) {
      if (!storage->buffer) status = device.materialize(*storage);
      if (status.ok()) {
        Ref<DeviceBuffer> held = storage->buffer;
        lock.unlock();
        status = held->buffer().read(destination, bytes);
        held = {};
        lock.lock();
      }
    }
    error = Device::synchronize(stream, lock);
  }
  if (error) raise(*error);
  if (failure) raise({"RuntimeError", *failure});
  check(status, "copy from neuron to cpu");
}

// Makes `source` (dense, of the layout's dtype and memory order) the contents of `storage`.
void upload(DeviceStorage& storage, const at::Tensor& source) {
  if (Callable::compile_only()) return;  // the storage stays without a buffer
  ProfileRange range("neuron::copy_to_device");
  Runtime& rt = runtime();
  ReleaseGil no_gil;
  Result<Buffer> buffer = rt.client().from_host(source.const_data_ptr(), storage.layout.dtype,
                                                storage.layout.dims, storage.device->pjrt(),
                                                HostSemantics::kImmutableOnlyDuringCall, nullptr);
  check(buffer.status(), "copy from cpu to neuron");
  std::unique_lock lock(rt.mutex);
  storage.buffer = Ref<DeviceBuffer>(new DeviceBuffer(std::move(buffer).value()));
  storage.failure = nullptr;
  lock.unlock();
  if (any_shared_memory()) settle_shared_memory(storage);
}

void copy_on_device(const at::Tensor& self, const at::Tensor& dst) {
  at::assert_no_internal_overlap(dst);
  at::assert_no_partial_overlap(dst, self);
  static Callable& copy = overload("aten::copy_");
  std::vector<c10::IValue> results;
  const c10::IValue arguments[] = {dst, self, false};
  copy.call(arguments, results);
}

void copy_to_device(const at::Tensor& self, const at::Tensor& dst) {
  const at::Tensor source = self.to(dst.scalar_type()).resolve_conj().resolve_neg();
  DeviceStorage* storage = storage_of(dst);
  // Launches that wait for a compile hold a reference: they must still read the old contents.
  if (fills_buffer(dst) && storage->use_count() == 1 && !dst.is_conj() && !dst.is_neg()) {
    at::Tensor dense = at::empty_strided(dst.sizes(), dst.strides(), source.options());
    dense.copy_(source);
    upload(*storage, dense);
    return;
  }
  at::Tensor staged =
      at::empty(source.sizes(), dst.options().memory_format(c10::MemoryFormat::Contiguous));
  upload(*storage_of(staged), source.contiguous());
  copy_on_device(staged, dst);
}

// Starts a copy into pinned memory, which is complete when the stream is. False: it must be waited
// for. Itself waits only for compiles of what writes the tensor.
bool start_copy_to_host(const at::Tensor& self, const at::Tensor& dst) {
  if (self.scalar_type() != dst.scalar_type() || self.sizes() != dst.sizes() ||
      !dst.is_contiguous() || dst.is_conj() || dst.is_neg() || !is_pinned(dst.const_data_ptr())) {
    return false;
  }
  ProfileRange range("neuron::start_copy_to_host");
  const at::Tensor source =
      fills_buffer(self) && self.is_contiguous() ? self : self.clone(c10::MemoryFormat::Contiguous);
  Device& device = neuron_device(source);
  DeviceStorage* storage = storage_of(source);
  Stream& stream = current_stream(device);
  std::shared_ptr<const std::string> failure;
  Status status;
  {
    ReleaseGil no_gil;
    std::unique_lock lock(runtime().mutex);
    Device::drain_uses(*storage, stream, lock);
    failure = storage->failure;
    if (!failure && !storage->buffer) status = device.materialize(*storage);
    if (!failure && status.ok()) {
      // Both stay until the copy is over; a buffer that is held is not donated meanwhile.
      struct Held {
        Ref<DeviceBuffer> buffer;
        std::shared_ptr<void> memory;
      };
      auto held = std::make_shared<Held>(storage->buffer, hold_pinned(dst.const_data_ptr()));
      Result<Event> copied = held->buffer->buffer().to_host(dst.mutable_data_ptr(), dst.nbytes());
      status = copied.status();
      if (status.ok()) {
        stream.push(Ref<Work>(new Work(std::move(copied).value(), nullptr, python_line(),
                                       device.next_number(), std::move(held))));
      }
    }
  }
  if (failure) raise({"RuntimeError", *failure});
  check(status, "copy from neuron to pinned memory");
  return true;
}

void copy_to_host(const at::Tensor& self, const at::Tensor& dst) {
  const at::Tensor source = fills_buffer(self) ? self : self.clone(c10::MemoryFormat::Contiguous);
  at::Tensor dense =
      at::empty_strided(source.sizes(), source.strides(), source.options().device(c10::kCPU));
  read_buffer(source, dense.mutable_data_ptr(), dense.nbytes());
  dst.copy_(dense);
}

// From one device to another, without the host and without waiting for it. False: the plugin
// cannot.
bool copy_to_peer(const at::Tensor& self, const at::Tensor& dst) {
  const at::Tensor cast = self.to(dst.scalar_type());
  const at::Tensor source =
      fills_buffer(cast) && cast.is_contiguous() ? cast : cast.clone(c10::MemoryFormat::Contiguous);
  const at::Tensor staged =
      at::empty(source.sizes(), dst.options().memory_format(c10::MemoryFormat::Contiguous));
  DeviceStorage* from = storage_of(source);
  DeviceStorage* to = storage_of(staged);
  Stream& reading = current_stream(*from->device);
  Stream& writing = current_stream(*to->device);
  std::shared_ptr<const std::string> failure;
  Status status;
  {
    ReleaseGil no_gil;
    std::unique_lock lock(runtime().mutex);
    Device::drain_uses(*from, reading, lock);
    failure = from->failure;
    if (!failure && !from->buffer) status = from->device->materialize(*from);
    if (!failure && status.ok()) {
      Result<Buffer> moved = from->buffer->buffer().to_device(to->device->pjrt());
      if (moved.ok()) {
        to->layout = from->layout;
        to->buffer = Ref<DeviceBuffer>(new DeviceBuffer(std::move(moved).value()));
        // What comes after is complete, and in order, only when the source is.
        to->device->wait(writing, from->device->record(reading, false));
      }
      status = moved.status();
    }
  }
  if (failure) raise({"RuntimeError", *failure});
  if (status.code() == StatusCode::kUnimplemented) return false;
  check(status, "copy between neuron devices");
  copy_on_device(staged.view(self.sizes()), dst);
  return true;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (dst.numel() == 0) return dst;
  const at::Tensor source = self.resolve_conj().resolve_neg();
  if (on_device(source) && on_device(dst)) {
    if (source.device() == dst.device()) {
      if (!source.is_same(dst)) copy_on_device(source, dst);
    } else if (!copy_to_peer(source, dst)) {
      copy_to_device(source.cpu(), dst);
    }
  } else if (on_device(dst)) {
    copy_to_device(source.expand(dst.sizes()), dst);
  } else if (!non_blocking || !start_copy_to_host(source, dst)) {
    copy_to_host(source, dst);
  }
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  at::native::resize_output(dst, self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(),
              " elements cannot be converted to Scalar");
  const at::Tensor source = fills_buffer(self) ? self : self.clone(c10::MemoryFormat::Contiguous);
  at::Tensor host = at::empty({}, source.options().device(c10::kCPU));
  read_buffer(source, host.mutable_data_ptr(), host.nbytes());
  return host.item();
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              self.device(), " and ", other.device(), "!");
  if (self.sizes() != other.sizes()) return false;
  return self.numel() == 0 || at::eq(self, other).all().item<bool>();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("equal", TORCH_FN(equal));
}

// The schema of `_copy_from` does not say that it writes `dst`, so PyTorch's own kernels for
// conjugate and negative views would write to a copy of it. Ours handles both bits.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace tn::torch_glue
