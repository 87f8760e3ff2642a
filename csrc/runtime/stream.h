// Streams and events: what was handed to the plugin, in which order, and what came of it.
//
// A device has one hardware queue. A stream is an ordered queue of launches multiplexed on it
// (decision D11): launches of one stream are handed over in order, launches of two streams only as
// events and shared storages demand. Everything here is guarded by Runtime::mutex unless it says
// otherwise; `lock` parameters hold it, and are released while waiting.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pjrt/event.h"
#include "runtime/kernel.h"
#include "runtime/storage.h"

namespace tn {

class Device;
class Stream;

// What is raised for a device error: a builtin exception's name and its text. `number` is that of
// the launch it belongs to: the lower, the earlier.
struct DeviceError {
  std::string exception = "RuntimeError";
  std::string message;
  uint64_t number = 0;
};

// The exception for what the plugin answered.
const char* exception_for(StatusCode code);

// When a piece of work was over; 0 until then. Written by a thread of the plugin.
struct DoneTime {
  std::atomic<int64_t> ns{0};
};

// Something that the plugin works on: a launch, or a transfer.
class Work : public RefCounted<Work> {
 public:
  Work(Event event, const Kernel* kernel, std::string line, uint64_t number,
       std::shared_ptr<void> keep = {})
      : event_(std::move(event)),
        kernel_(kernel),
        line_(std::move(line)),
        number_(number),
        keep_(std::move(keep)) {}
  ~Work() {
    if (forked().load(std::memory_order_relaxed)) static_cast<void>(event_.release());
  }

  const Event& event() const { return event_; }
  const Kernel* kernel() const { return kernel_; }  // null: a transfer
  const std::string& line() const { return line_; }
  uint64_t number() const { return number_; }
  // When it will be over, for events that measure time; asks the plugin at the first call.
  const std::shared_ptr<DoneTime>& done_time();

 private:
  Event event_;
  const Kernel* const kernel_;
  const std::string line_;
  const uint64_t number_;
  const std::shared_ptr<void> keep_;  // host memory that a transfer uses
  std::shared_ptr<DoneTime> done_;
};

// An event's record: a point in the order of a stream.
struct Recording {
  Recording(Stream* stream, bool timing) : stream(stream), timing(timing) {}

  Stream* const stream;
  const bool timing;
  // It stands in the stream's queue behind the launches up to this ticket.
  uint64_t ticket = 0;
  // All of those were handed to the plugin; the members below hold from then on.
  bool issued = false;
  uint64_t sequence = 0;   // complete when the stream has finished that much
  uint64_t num_words = 0;  // error words of the launches before it
  int64_t issued_ns = 0;
  std::vector<std::shared_ptr<DoneTime>> times;  // of the launches that still ran

  // When all of that was over, for a complete event that measures time. Without the lock: the
  // plugin's callbacks may come a moment after it says that the work is over.
  int64_t complete_ns() const;
};

// The error word of a launch with index checks.
struct ErrorWord {
  Ref<DeviceBuffer> buffer;
  const Kernel* kernel;
  std::string line;
  uint64_t number;
};

// What a stream was asked to do and could not do at once.
struct Queued {
  uint64_t ticket = 0;
  // Uses of the same storages on other streams that come first.
  std::vector<std::pair<Stream*, uint64_t>> after;

  Kernel* kernel = nullptr;                  // null: an event is recorded, or waited for
  std::vector<Ref<DeviceStorage>> storages;  // by parameter; null for numbers
  std::vector<Ref<DeviceBuffer>> numbers;
  std::vector<Ref<DeviceStorage>> outputs;
  bool uses_rng = false;
  uint64_t seed = 0;
  uint64_t offset = 0;
  uint64_t number = 0;
  std::string line;
  // A batch: the launches that it is made of, launched one by one if the batch fails.
  std::vector<Queued> parts;
  bool alone = false;  // was part of a batch that failed

  std::shared_ptr<Recording> record;
  std::shared_ptr<Recording> wait;
};

class Stream {
 public:
  Stream(Device& device, int64_t id, int priority) : device(device), id(id), priority(priority) {}
  Stream(const Stream&) = delete;

  Device& device;
  const int64_t id;
  const int priority;  // lower goes first

  // -- Not yet handed over; Device works it off --
  std::deque<Queued> queue;
  // Whether the queued item of this ticket was handed over.
  bool handed_over(uint64_t ticket) const { return queue.empty() || queue.front().ticket > ticket; }

  // -- Handed over --
  void push(Ref<Work> work);
  // What follows is complete only when `recording`, which is issued, is.
  void push_wait(const std::shared_ptr<Recording>& recording);
  void push_word(ErrorWord word);
  // Fills in a record of what was handed over so far.
  void issue(Recording& recording);
  uint64_t issued() const { return finished_ + in_flight_.size(); }
  uint64_t num_words() const { return words_taken_ + words_.size(); }
  // Whether everything up to `sequence` is complete. Never blocks.
  bool finished(uint64_t sequence);
  // Blocks until everything up to `sequence` is complete.
  void wait_until(uint64_t sequence, std::unique_lock<std::mutex>& lock);

  // -- Errors --
  void record_error(DeviceError error);
  void count_victim() { ++later_errors_; }
  // Waits as wait_until does, looks at the error words before `num_words`, and adds to `settled`
  // this stream and those it waited for.
  void settle(uint64_t sequence, uint64_t num_words, std::unique_lock<std::mutex>& lock,
              std::vector<Stream*>& settled);
  // The earliest error of these streams; forgets all of theirs.
  static std::optional<DeviceError> take_errors(const std::vector<Stream*>& streams);
  // "(aten::add.Tensor(float32[2]), stream 0 of neuron:0, issued at file.py:12)"
  std::string context(const Kernel* kernel, const std::string& line) const;

 private:
  struct InFlight {
    Ref<Work> work;
    std::shared_ptr<Recording> wait;  // instead of work
  };
  // An event of another stream that this one waited for: an error before it is an error here.
  struct WaitedFor {
    Stream* stream;
    uint64_t num_words;
    uint64_t sequence;  // of this stream, from where on
  };

  void prune(uint64_t sequence);
  void pop(Status status);
  void collect_times(uint64_t sequence, std::vector<std::shared_ptr<DoneTime>>& times,
                     std::vector<std::pair<Stream*, uint64_t>>& covered);
  std::optional<DeviceError> error_of(const ErrorWord& word) const;
  void look_at_words(uint64_t num_words, std::unique_lock<std::mutex>* lock);

  std::deque<InFlight> in_flight_;
  uint64_t finished_ = 0;
  std::deque<ErrorWord> words_;
  uint64_t words_taken_ = 0;
  std::vector<WaitedFor> waited_for_;
  std::optional<DeviceError> first_error_;
  uint64_t later_errors_ = 0;
};

}  // namespace tn
