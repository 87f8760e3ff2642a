#include "host/handler.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <string>

// OpenMP's, as loaded with torch; absent where torch was built without it.
extern "C" __attribute__((weak)) void omp_set_num_threads(int);
extern "C" __attribute__((weak)) int omp_get_max_threads();

namespace tn::host {
namespace {

std::atomic<int> num_threads{1};

// This thread's kernels see plain CPU tensors: no autograd, no autocast, no mode of Python's. A
// plugin may run a small program in the thread that launched it, which has all of these.
class PlainDispatch {
 public:
  PlainDispatch()
      : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
              c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
                  c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView)) {}

 private:
  c10::InferenceMode inference_;
  at::RecordFunctionGuard records_{false};
  c10::impl::ForceDispatchKeyGuard keys_;
};

// The kernel's threads. The number is always the same, because sums depend on it; so that two
// kernels of one program do not take the machine twice, one runs at a time.
class Threads {
 public:
  Threads() {
    const int wanted = num_threads.load(std::memory_order_relaxed);
    if (wanted > 1) turn_.lock();
    if (omp_set_num_threads == nullptr || omp_get_max_threads == nullptr) return;
    at::get_num_threads();  // ATen sets a thread's number at its first question
    before_ = omp_get_max_threads();
    omp_set_num_threads(wanted);
  }
  ~Threads() {
    if (before_ > 0) omp_set_num_threads(before_);
  }
  Threads(const Threads&) = delete;

 private:
  static std::mutex& mutex() {
    static auto* instance = new std::mutex;
    return *instance;
  }
  std::unique_lock<std::mutex> turn_{mutex(), std::defer_lock};
  int before_ = 0;
};

XLA_FFI_Error* make_error(XLA_FFI_CallFrame* frame, const char* message) {
  XLA_FFI_Error_Create_Args args{};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = message;
  args.errc = XLA_FFI_Error_Code_INTERNAL;
  return frame->api->XLA_FFI_Error_Create(&args);
}

// XLA asks a handler for its version before it takes it.
void answer(XLA_FFI_Metadata& metadata) {
  metadata.api_version.major_version = XLA_FFI_API_MAJOR;
  metadata.api_version.minor_version = XLA_FFI_API_MINOR;
  metadata.traits = 0;
}

}  // namespace

void set_num_threads(int threads) { num_threads.store(threads, std::memory_order_relaxed); }

XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame, Kernel kernel) noexcept {
  const XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (extension != nullptr && extension->type == XLA_FFI_Extension_Metadata) {
    answer(*reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)->metadata);
    return nullptr;
  }
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
  try {
    PlainDispatch plain;
    Threads threads;
    kernel(Call(frame));
    return nullptr;
  } catch (const c10::Error& error) {
    return make_error(frame, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return make_error(frame, error.what());
  } catch (...) {
    return make_error(frame, "a host kernel threw what is no exception");
  }
}

}  // namespace tn::host
