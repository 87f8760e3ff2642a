// Completion of asynchronous work of a plugin.

#ifndef TN_PJRT_EVENT_H_
#define TN_PJRT_EVENT_H_

#include <functional>
#include <utility>

#include "base/status.h"
#include "pjrt_c_api.h"

namespace tn {

// Owns a PJRT_Event. A null event is ready and OK. Const calls are
// thread-safe; moving and resetting are not.
class Event {
 public:
  Event() = default;
  // Takes ownership of `event`, which may be null.
  Event(const PJRT_Api* api, PJRT_Event* event) : api_(api), event_(event) {}
  Event(Event&& other) noexcept : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    if (this != &other) {
      reset();
      api_ = other.api_;
      event_ = std::exchange(other.event_, nullptr);
    }
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) reset();
  }

  PJRT_Event* get() const { return event_; }
  bool is_null() const { return event_ == nullptr; }
  // Gives up ownership.
  PJRT_Event* release() { return std::exchange(event_, nullptr); }
  // Destroys the event; does not wait. The work goes on.
  void reset();

  // Never blocks. An event that the plugin cannot query counts as ready; its
  // status then says why.
  bool ready() const;
  // Blocks until ready. The status of the work.
  Status await() const;
  // The status of the work of a ready event; FAILED_PRECONDITION when it is not
  // ready. Never blocks.
  Status status() const;
  // Calls `callback` once with the status of the work: now, in this thread,
  // when ready already (or when the plugin refuses the registration, with its
  // error), else later in a thread of the plugin. The callback must not block
  // and must not destroy the client. The event may be destroyed before.
  void on_ready(std::function<void(Status)> callback) const;

 private:
  const PJRT_Api* api_ = nullptr;
  PJRT_Event* event_ = nullptr;
};

}  // namespace tn

#endif  // TN_PJRT_EVENT_H_
