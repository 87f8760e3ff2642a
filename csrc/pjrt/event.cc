#include "pjrt/event.h"

#include <memory>
#include <string>

#include "base/counters.h"
#include "pjrt/plugin.h"

namespace tn {
namespace {

struct Pending {
  const PJRT_Api* api;
  std::function<void(Status)> callback;
};

// Called by the plugin, once; owns both arguments.
void run_callback(PJRT_Error* error, void* user_arg) {
  std::unique_ptr<Pending> pending(static_cast<Pending*>(user_arg));
  pending->callback(take_error(pending->api, error));
}

}  // namespace

void Event::reset() {
  PJRT_Event* event = std::exchange(event_, nullptr);
  if (event == nullptr) return;
  PJRT_Event_Destroy_Args args{PJRT_Event_Destroy_Args_STRUCT_SIZE, nullptr, event};
  // Nothing can be done about an event that fails to be freed.
  take_error(api_, api_->PJRT_Event_Destroy(&args)).ignore();
}

bool Event::ready() const {
  if (event_ == nullptr) return true;
  PJRT_Event_IsReady_Args args{};
  args.struct_size = PJRT_Event_IsReady_Args_STRUCT_SIZE;
  args.event = event_;
  // Else a caller that polls would poll forever; await() tells the error.
  if (!take_error(api_, api_->PJRT_Event_IsReady(&args)).ok()) return true;
  return args.is_ready;
}

Status Event::await() const {
  if (event_ == nullptr) return Status();
  counters().event_waits.add();
  PJRT_Event_Await_Args args{PJRT_Event_Await_Args_STRUCT_SIZE, nullptr, event_};
  return take_error(api_, api_->PJRT_Event_Await(&args));
}

Status Event::status() const {
  if (event_ == nullptr) return Status();
  if (!ready()) {
    return failed_precondition("the status of an event was read before it was ready");
  }
  PJRT_Event_Error_Args args{PJRT_Event_Error_Args_STRUCT_SIZE, nullptr, event_};
  return take_error(api_, api_->PJRT_Event_Error(&args));
}

void Event::on_ready(std::function<void(Status)> callback) const {
  if (event_ == nullptr) {
    callback(Status());
    return;
  }
  auto pending = std::make_unique<Pending>(Pending{api_, std::move(callback)});
  PJRT_Event_OnReady_Args args{};
  args.struct_size = PJRT_Event_OnReady_Args_STRUCT_SIZE;
  args.event = event_;
  args.callback = &run_callback;
  args.user_arg = pending.get();
  if (PJRT_Error* error = api_->PJRT_Event_OnReady(&args)) {
    pending->callback(take_error(api_, error));
    return;
  }
  static_cast<void>(pending.release());  // run_callback frees it, or has already.
}

}  // namespace tn
