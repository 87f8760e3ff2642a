#include "torch/runtime.h"
#include "runtime/segments.h"
#include "torch/ending.h"
#include "torch/profile.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <Python.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <atomic>
#include <utility>

namespace tn::torch_glue {
namespace {

std::function<void()> g_starter;
std::function<int()> g_counter;
constexpr int kNoneChosen = -1;
thread_local int t_current_device = kNoneChosen;
// What the main thread set last. Threads that choose no device follow it, so that what a worker
// thread loads goes where the program's own tensors go.
std::atomic<int> g_main_device{0};
std::atomic<SyncDebugMode> g_sync_debug_mode{SyncDebugMode::kDefault};

}  // namespace

void set_starter(std::function<void()> starter) { g_starter = std::move(starter); }
void set_device_counter(std::function<int()> counter) { g_counter = std::move(counter); }
bool is_started() { return Runtime::get() != nullptr; }
bool in_bad_fork() { return forked().load(std::memory_order_relaxed); }

Runtime& runtime() {
  TORCH_CHECK(!in_bad_fork(),
              "Cannot re-initialize the neuron device in a forked subprocess. To use it with "
              "multiprocessing, use the 'spawn' start method.");
  if (Runtime* started = Runtime::get()) [[likely]] {
    return *started;
  }
  TORCH_CHECK(g_starter, "torch_neuronx is not registered: import torch_neuronx first");
  g_starter();
  TORCH_CHECK(Runtime::get(), "the neuron runtime did not start");
  return *Runtime::get();
}

int num_devices() noexcept {
  if (Runtime* started = Runtime::get()) return started->num_devices();
  try {
    return g_counter ? g_counter() : 0;
  } catch (...) {
    return 0;
  }
}

int current_device() {
  return t_current_device == kNoneChosen ? g_main_device.load(std::memory_order_relaxed)
                                         : t_current_device;
}

int checked_device(int64_t index) {
  if (index == -1) return current_device();
  // There is always the first, and counting asks Python before the start.
  TORCH_CHECK(index == 0 || (index > 0 && index < num_devices()),
              "invalid device ordinal: neuron:", index, " (this process has ", num_devices(),
              " neuron device(s); TORCH_NEURONX_NUM_DEVICES sets the number)");
  return static_cast<int>(index);
}

int exchange_current_device(int index) {
  TORCH_CHECK(index >= 0, "invalid device ordinal: neuron:", index,
              " (an index that is made current must not be negative)");
  checked_device(index);
  const int before = current_device();
  t_current_device = index;
  return before;
}

void set_current_device(int index) {
  exchange_current_device(index);
  if (getpid() == gettid()) g_main_device.store(index, std::memory_order_relaxed);
}

Device& neuron_device(const at::Tensor& tensor) {
  Runtime& rt = runtime();
  const int index = tensor.device().index();
  return rt.device(index < 0 ? 0 : index);
}

std::optional<DType> find_dtype(c10::ScalarType type) {
  switch (type) {
#define TN_CASE(torch_type, ours)   \
  case c10::ScalarType::torch_type: \
    return DType::ours;
    TN_CASE(Bool, kBool)
    TN_CASE(Byte, kU8)
    TN_CASE(Char, kI8)
    TN_CASE(Short, kI16)
    TN_CASE(UInt16, kU16)
    TN_CASE(Int, kI32)
    TN_CASE(UInt32, kU32)
    TN_CASE(Long, kI64)
    TN_CASE(UInt64, kU64)
    TN_CASE(Float8_e4m3fn, kF8E4M3FN)
    TN_CASE(Float8_e4m3fnuz, kF8E4M3FNUZ)
    TN_CASE(Float8_e5m2, kF8E5M2)
    TN_CASE(Float8_e5m2fnuz, kF8E5M2FNUZ)
    TN_CASE(Float8_e8m0fnu, kF8E8M0FNU)
    TN_CASE(Half, kF16)
    TN_CASE(BFloat16, kBF16)
    TN_CASE(Float, kF32)
    TN_CASE(Double, kF64)
    TN_CASE(ComplexFloat, kC64)
    TN_CASE(ComplexDouble, kC128)
#undef TN_CASE
    default:
      return std::nullopt;
  }
}

DType to_dtype(c10::ScalarType type) {
  const std::optional<DType> found = find_dtype(type);
  TORCH_CHECK_TYPE(found, "dtype ", type,
                   " is not supported on the neuron device. Convert the tensor to a supported "
                   "dtype (bool, integers, float16, bfloat16, float32, float64, float8, "
                   "complex64, complex128) first.");
  return *found;
}

c10::ScalarType to_scalar_type(DType dtype) {
  static const c10::ScalarType types[] = {
      c10::ScalarType::Bool,
      c10::ScalarType::Byte,
      c10::ScalarType::Char,
      c10::ScalarType::Short,
      c10::ScalarType::UInt16,
      c10::ScalarType::Int,
      c10::ScalarType::UInt32,
      c10::ScalarType::Long,
      c10::ScalarType::UInt64,
      c10::ScalarType::Float8_e4m3fn,
      c10::ScalarType::Float8_e4m3fnuz,
      c10::ScalarType::Float8_e5m2,
      c10::ScalarType::Float8_e5m2fnuz,
      c10::ScalarType::Float8_e8m0fnu,
      c10::ScalarType::Half,
      c10::ScalarType::BFloat16,
      c10::ScalarType::Float,
      c10::ScalarType::Double,
      c10::ScalarType::ComplexFloat,
      c10::ScalarType::ComplexDouble,
  };
  return types[static_cast<size_t>(dtype)];
}

void raise(const DeviceError& error) {
  const std::string& text = error.message;
  if (error.exception == "IndexError") TORCH_CHECK_INDEX(false, text);
  if (error.exception == "ValueError") TORCH_CHECK_VALUE(false, text);
  if (error.exception == "TypeError") TORCH_CHECK_TYPE(false, text);
  if (error.exception == "NotImplementedError") TORCH_CHECK_NOT_IMPLEMENTED(false, text);
  if (error.exception == "LinAlgError") TORCH_CHECK_LINALG(false, text);
  if (error.exception == "OutOfMemoryError") TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  TORCH_CHECK(false, text);
}

void check(const Status& status, const char* what) {
  if (status.ok()) [[likely]]
    return;
  raise({exception_for(status.code()), std::string(what) + ": " + status.to_string()});
}

ReleaseGil::ReleaseGil() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
ReleaseGil::~ReleaseGil() {
  if (!state_) return;
  wait_if_interpreter_ends();
  PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

Layout fresh_layout(DType dtype, c10::IntArrayRef sizes) { return {dtype, sizes.vec()}; }

void release_storage(void* context) { static_cast<DeviceStorage*>(context)->unref_tensor(); }

DeviceStorage* storage_at(const c10::DataPtr& data) {
  const auto address = reinterpret_cast<uintptr_t>(data.get());
  void* owner = nullptr;
  for (int i = 0; address && !owner && i < num_devices() && is_started(); ++i) {
    owner = runtime().device(i).memory().owner(address);
  }
  TORCH_CHECK(owner,
              "expected a neuron tensor over a storage of this device, got one whose storage was "
              "released or points elsewhere");
  return static_cast<DeviceStorage*>(owner);
}

at::Tensor make_tensor(Ref<DeviceStorage> storage, c10::ScalarType dtype, c10::IntArrayRef sizes,
                       c10::IntArrayRef strides) {
  DeviceStorage* raw = storage.get();
  raw->ref();  // owned by the DataPtr
  const c10::Device device(c10::DeviceType::PrivateUse1,
                           static_cast<c10::DeviceIndex>(raw->device->index()));
  auto impl = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), raw->bytes,
      c10::DataPtr(reinterpret_cast<void*>(raw->address), raw, &release_storage, device),
      c10::GetAllocator(c10::DeviceType::PrivateUse1), /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor_base<c10::TensorImpl>(
      std::move(impl), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  if (strides.empty()) {
    // A fresh TensorImpl is one-dimensional of size 0.
    if (sizes.size() != 1 || sizes[0] != 0) {
      tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    }
  } else {
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  }
  return tensor;
}

SyncDebugMode sync_debug_mode() { return g_sync_debug_mode.load(std::memory_order_relaxed); }

void set_sync_debug_mode(SyncDebugMode mode) {
  g_sync_debug_mode.store(mode, std::memory_order_relaxed);
}

void note_synchronizing() {
  const SyncDebugMode mode = sync_debug_mode();
  if (mode == SyncDebugMode::kDefault) [[likely]]
    return;
  TORCH_CHECK(mode != SyncDebugMode::kError,
              "called a synchronizing neuron operation: the host would wait for the device "
              "(torch.neuron.set_sync_debug_mode(\"error\") is set)");
  TORCH_WARN("called a synchronizing neuron operation");
}

void synchronize(Device& device) {
  ProfileRange range("neuron::synchronize");
  std::optional<DeviceError> error;
  {
    ReleaseGil no_gil;
    std::unique_lock lock(runtime().mutex);
    error = device.synchronize(lock);
  }
  if (error) raise(*error);
}

void synchronize(Stream& stream) {
  ProfileRange range("neuron::synchronize");
  std::optional<DeviceError> error;
  {
    ReleaseGil no_gil;
    std::unique_lock lock(runtime().mutex);
    error = Device::synchronize(stream, lock);
  }
  if (error) raise(*error);
}

}  // namespace tn::torch_glue
