#include "runtime/stream.h"

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "runtime/device.h"

namespace tn {
namespace {

constexpr size_t kPruneAbove = 64;
constexpr size_t kRunAheadLimit = 8192;  // launches in flight before issuing waits for the oldest
constexpr size_t kWordLimit = 256;       // error words kept before the oldest are looked at

std::string replaced(std::string text, int64_t value) {
  const std::string mark = "{value}";
  for (size_t at; (at = text.find(mark)) != std::string::npos;) {
    text.replace(at, mark.size(), std::to_string(value));
  }
  return text;
}

}  // namespace

const char* exception_for(StatusCode code) {
  switch (code) {
    case StatusCode::kUnimplemented:
      return "NotImplementedError";
    case StatusCode::kResourceExhausted:
      return "OutOfMemoryError";
    default:
      return "RuntimeError";
  }
}

const std::shared_ptr<DoneTime>& Work::done_time() {
  if (!done_) {
    done_ = std::make_shared<DoneTime>();
    event_.on_ready([done = done_](Status) {
      done->ns.store(monotonic_ns(), std::memory_order_release);
      done->ns.notify_all();
    });
  }
  return done_;
}

int64_t Recording::complete_ns() const {
  int64_t last_ns = issued_ns;
  for (const auto& time : times) {
    time->ns.wait(0);
    last_ns = std::max(last_ns, time->ns.load());
  }
  return last_ns;
}

void Stream::push(Ref<Work> work) {
  in_flight_.push_back({std::move(work), nullptr});
  if (in_flight_.size() <= kPruneAbove) return;
  prune(issued());
  if (in_flight_.size() > kRunAheadLimit && in_flight_.front().work) {
    pop(in_flight_.front().work->event().await());
  }
}

void Stream::push_wait(const std::shared_ptr<Recording>& recording) {
  if (recording->stream == this) return;  // in order anyway
  if (!recording->stream->finished(recording->sequence)) in_flight_.push_back({{}, recording});
  for (WaitedFor& before : waited_for_) {
    if (before.stream != recording->stream) continue;
    before.num_words = std::max(before.num_words, recording->num_words);
    return;
  }
  waited_for_.push_back({recording->stream, recording->num_words, issued()});
}

void Stream::push_word(ErrorWord word) {
  words_.push_back(std::move(word));
  // A program that never synchronises must not keep every word it ever made.
  if (words_.size() > kWordLimit) look_at_words(words_taken_ + kWordLimit / 2, nullptr);
}

void Stream::issue(Recording& recording) {
  prune(issued());
  recording.issued = true;
  recording.sequence = issued();
  recording.num_words = num_words();
  if (!recording.timing) return;
  std::vector<std::pair<Stream*, uint64_t>> covered;
  collect_times(recording.sequence, recording.times, covered);
  recording.issued_ns = monotonic_ns();
}

void Stream::collect_times(uint64_t sequence, std::vector<std::shared_ptr<DoneTime>>& times,
                           std::vector<std::pair<Stream*, uint64_t>>& covered) {
  uint64_t from = finished_;
  auto seen = std::find_if(covered.begin(), covered.end(),
                           [this](const auto& item) { return item.first == this; });
  if (seen == covered.end()) {
    covered.emplace_back(this, sequence);
  } else {
    from = std::max(from, seen->second);
    seen->second = std::max(seen->second, sequence);
  }
  for (uint64_t at = from; at < sequence; ++at) {
    const InFlight& item = in_flight_[at - finished_];
    if (item.work) {
      times.push_back(item.work->done_time());
    } else {
      item.wait->stream->collect_times(item.wait->sequence, times, covered);
    }
  }
}

void Stream::pop(Status status) {
  const InFlight& oldest = in_flight_.front();
  if (!status.ok() && oldest.work) {
    record_error({exception_for(status.code()),
                  status.message() + " " + context(oldest.work->kernel(), oldest.work->line()),
                  oldest.work->number()});
  }
  in_flight_.pop_front();
  ++finished_;
}

void Stream::prune(uint64_t sequence) {
  while (finished_ < sequence) {
    const InFlight& oldest = in_flight_.front();
    if (oldest.work) {
      if (!oldest.work->event().ready()) return;
      pop(oldest.work->event().status());
    } else {
      // An event only waits for what was there before it, so this ends.
      if (!oldest.wait->stream->finished(oldest.wait->sequence)) return;
      pop(Status());
    }
  }
}

bool Stream::finished(uint64_t sequence) {
  prune(sequence);
  return finished_ >= sequence;
}

void Stream::wait_until(uint64_t sequence, std::unique_lock<std::mutex>& lock) {
  while (!finished(sequence)) {
    if (Ref<Work> work = in_flight_.front().work) {
      lock.unlock();
      const Status status = work->event().await();
      lock.lock();
      // Another thread may have seen it first.
      if (!in_flight_.empty() && in_flight_.front().work.get() == work.get()) pop(status);
    } else {
      std::shared_ptr<Recording> wait = in_flight_.front().wait;
      wait->stream->wait_until(wait->sequence, lock);
    }
  }
}

void Stream::record_error(DeviceError error) {
  if (!first_error_) {
    first_error_ = std::move(error);
    return;
  }
  ++later_errors_;
  if (error.number < first_error_->number) first_error_ = std::move(error);
}

std::string Stream::context(const Kernel* kernel, const std::string& line) const {
  return "(" + (kernel ? kernel->description() : std::string("copy between host and device")) +
         ", stream " + std::to_string(id) + " of neuron:" + std::to_string(device.index()) +
         (line.empty() ? "" : ", issued at " + line) + ")";
}

std::optional<DeviceError> Stream::error_of(const ErrorWord& word) const {
  int64_t value[2] = {0, 0};
  // A failed read has its cause in a failed launch, which is reported by itself.
  if (!word.buffer->buffer().read(value, sizeof(value)).ok() || value[0] == 0) return std::nullopt;
  const IndexCheck& check = word.kernel->signature().checks[value[0] - 1];
  return DeviceError{check.exception,
                     replaced(check.message, value[1]) + " " + context(word.kernel, word.line),
                     word.number};
}

// Without a lock to release, reads under the caller's.
void Stream::look_at_words(uint64_t num_words, std::unique_lock<std::mutex>* lock) {
  if (num_words <= words_taken_ || words_.empty()) return;
  const auto count = std::min<uint64_t>(num_words - words_taken_, words_.size());
  const auto end = words_.begin() + static_cast<ptrdiff_t>(count);
  std::vector<ErrorWord> words(std::make_move_iterator(words_.begin()),
                               std::make_move_iterator(end));
  words_.erase(words_.begin(), end);
  words_taken_ += count;
  if (lock) lock->unlock();
  std::vector<DeviceError> errors;
  for (const ErrorWord& word : words) {
    if (std::optional<DeviceError> error = error_of(word)) errors.push_back(std::move(*error));
  }
  words.clear();
  if (lock) lock->lock();
  for (DeviceError& error : errors) record_error(std::move(error));
}

void Stream::settle(uint64_t sequence, uint64_t num_words, std::unique_lock<std::mutex>& lock,
                    std::vector<Stream*>& settled) {
  if (std::find(settled.begin(), settled.end(), this) == settled.end()) settled.push_back(this);
  wait_until(sequence, lock);
  look_at_words(num_words, &lock);
  std::vector<WaitedFor> others;
  for (size_t i = 0; i < waited_for_.size();) {
    if (waited_for_[i].sequence > sequence) {
      ++i;
      continue;
    }
    others.push_back(waited_for_[i]);
    waited_for_.erase(waited_for_.begin() + static_cast<ptrdiff_t>(i));
  }
  // Their work is over, since ours is; only their words are left to look at.
  for (const WaitedFor& other : others) other.stream->settle(0, other.num_words, lock, settled);
}

std::optional<DeviceError> Stream::take_errors(const std::vector<Stream*>& streams) {
  std::vector<DeviceError> firsts;
  uint64_t later = 0;
  for (Stream* stream : streams) {
    if (stream->first_error_) firsts.push_back(std::move(*stream->first_error_));
    stream->first_error_.reset();
    later += std::exchange(stream->later_errors_, 0);
  }
  if (firsts.empty()) return std::nullopt;
  std::sort(firsts.begin(), firsts.end(),
            [](const DeviceError& a, const DeviceError& b) { return a.number < b.number; });
  DeviceError error = std::move(firsts.front());
  if (later) error.message += "\n(" + std::to_string(later) + " later operator(s) failed with it)";
  for (size_t i = 1; i < firsts.size(); ++i) {
    error.message += "\n(another stream failed, too: " + firsts[i].message + ")";
  }
  return error;
}

}  // namespace tn
