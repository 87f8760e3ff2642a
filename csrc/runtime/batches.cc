#include "runtime/batches.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "runtime/device.h"
#include "runtime/segments.h"

namespace tn {
namespace {

constexpr size_t kShortest = 2;  // launches in a batch
constexpr size_t kLongest = 64;  // more compile longer than one waits
constexpr size_t kWindow = 8;    // launches before and after the last of a run that say it is that
constexpr size_t kLooks = 16;    // launches until the next look

// Whether a queued launch may be part of a batch.
bool belongs(const Queued& queued) {
  if (!queued.kernel || queued.alone || !queued.parts.empty() || !queued.after.empty() ||
      !queued.kernel->may_batch()) {
    return false;
  }
  return queued.kernel->deferred() || queued.kernel->state() == KernelState::kReady;
}

// Where the run of `queue` that begins at `first` ends, before `end`: behind the launch whose mark
// is the least of its surroundings. That depends on these alone, so that the layers of a model are
// all cut at the same places, wherever the first run began. 0 if it is not known yet.
size_t end_of_run(const std::deque<Queued>& queue, size_t first, size_t end, bool complete) {
  for (size_t i = first + kWindow; i < end && i - first < kLongest; ++i) {
    const uint64_t mark = queue[i].kernel->mark();
    bool least = true;
    for (size_t j = i - kWindow; j < i && least; ++j) least = mark < queue[j].kernel->mark();
    for (size_t j = i + 1; j < std::min(i + kWindow + 1, end) && least; ++j) {
      least = mark <= queue[j].kernel->mark();
    }
    if (!least) continue;
    if (i + kWindow >= end && !complete) return 0;
    return i + 1;
  }
  if (end - first >= kLongest) return first + kLongest;
  return complete ? end : 0;
}

}  // namespace

std::optional<Run> Batches::next(std::vector<Kernel*>& alone) {
  for (Stream* stream : device_.by_priority_) {
    if (std::optional<Run> run = run_in(*stream)) return run;
  }
  if (hurried_) {
    for (Stream* stream : device_.by_priority_) {
      for (const Queued& queued : stream->queue) {
        if (queued.kernel && queued.kernel->deferred()) alone.push_back(queued.kernel);
      }
    }
    hurried_ = false;
    fresh_ = 0;
  }
  next_look_ = fresh_ + kLooks;
  return std::nullopt;
}

std::optional<Run> Batches::run_in(Stream& stream) {
  const std::deque<Queued>& queue = stream.queue;
  size_t at = 0;
  while (at < queue.size()) {
    if (!belongs(queue[at])) {
      ++at;
      continue;
    }
    size_t first = at;
    while (at < queue.size() && belongs(queue[at])) ++at;
    const bool complete = hurried_ || at < queue.size();
    while (const size_t end = first < at ? end_of_run(queue, first, at, complete) : 0) {
      const bool cold = std::any_of(queue.begin() + static_cast<ptrdiff_t>(first),
                                    queue.begin() + static_cast<ptrdiff_t>(end),
                                    [](const Queued& queued) { return queued.kernel->deferred(); });
      if (cold && end - first >= kShortest) return describe(stream, first, end - first);
      first = end;
    }
  }
  return std::nullopt;
}

Run Batches::describe(Stream& stream, size_t first, size_t count) const {
  Run run;
  run.stream = &stream;
  run.ticket = stream.queue[first].ticket;
  Dataflow& flow = run.flow;
  struct Seen {
    int32_t slot;
    int64_t mentions;
  };
  std::unordered_map<DeviceStorage*, Seen> seen;
  std::vector<DeviceStorage*> storages;
  auto add = [&](const Ref<DeviceStorage>& storage, bool created) {
    auto [it, fresh] = seen.try_emplace(storage.get(), static_cast<int32_t>(storages.size()), 0);
    if (fresh) {
      storages.push_back(storage.get());
      flow.created.push_back(created);
      flow.written.push_back(created);
    }
    ++it->second.mentions;
    flow.slots.push_back(it->second.slot);
  };
  for (size_t i = first; i < first + count; ++i) {
    const Queued& queued = stream.queue[i];
    run.parts.push_back({queued.kernel, static_cast<uint32_t>(queued.storages.size()),
                         static_cast<uint32_t>(queued.outputs.size()), queued.uses_rng});
    const size_t params = flow.slots.size();
    for (const Ref<DeviceStorage>& storage : queued.storages) {
      if (storage) {
        add(storage, false);
      } else {
        flow.slots.push_back(-1);
      }
    }
    for (const Ref<DeviceStorage>& output : queued.outputs) add(output, true);
    for (int32_t w : queued.kernel->writes()) flow.written[flow.slots[params + w]] = true;
  }
  for (size_t s = 0; s < storages.size(); ++s) {
    const bool live = storages[s]->use_count() > seen[storages[s]].mentions;
    flow.needed.push_back(flow.written[s] && live);
    flow.dropped.push_back(!flow.created[s] && !live);
  }
  return run;
}

bool Batches::place(const Run& run, Kernel* kernel) {
  std::deque<Queued>& queue = run.stream->queue;
  const auto begin = std::find_if(queue.begin(), queue.end(),
                                  [&](const Queued& q) { return q.ticket == run.ticket; });
  if (queue.end() - begin < static_cast<ptrdiff_t>(run.parts.size())) return false;
  for (size_t i = 0; i < run.parts.size(); ++i) {
    const Queued& queued = *(begin + static_cast<ptrdiff_t>(i));
    if (queued.kernel != run.parts[i].kernel || queued.alone || !queued.parts.empty()) return false;
  }
  const auto end = begin + static_cast<ptrdiff_t>(run.parts.size());
  Queued batch;
  batch.ticket = run.ticket;
  batch.kernel = kernel;
  batch.number = begin->number;
  batch.line = begin->line;
  std::vector<Ref<DeviceStorage>> storages(run.flow.created.size());
  std::vector<Ref<DeviceBuffer>> numbers;
  size_t at = 0;
  for (auto queued = begin; queued != end; ++queued) {
    for (size_t p = 0; p < queued->storages.size(); ++p) {
      const int32_t slot = run.flow.slots[at++];
      if (slot < 0) {
        numbers.push_back(queued->numbers[p]);
      } else if (!storages[slot]) {
        storages[slot] = queued->storages[p];
      }
    }
    for (const Ref<DeviceStorage>& output : queued->outputs) {
      storages[run.flow.slots[at++]] = output;
    }
    if (!queued->uses_rng) continue;
    for (uint64_t value : {queued->seed, queued->offset}) {
      Result<Ref<DeviceBuffer>> number = device_.fresh_number(value);
      if (!number.ok()) return false;
      numbers.push_back(std::move(number).value());
    }
  }
  Result<Ref<DeviceBuffer>> zero = device_.number(DType::kI32, 0);
  if (!zero.ok()) return false;
  numbers.push_back(std::move(zero).value());
  for (size_t s = 0; s < storages.size(); ++s) {
    if (run.flow.created[s]) {
      if (run.flow.needed[s]) batch.outputs.push_back(std::move(storages[s]));
    } else {
      batch.storages.push_back(std::move(storages[s]));
      batch.numbers.emplace_back();
    }
  }
  for (Ref<DeviceBuffer>& number : numbers) {
    batch.storages.emplace_back();
    batch.numbers.push_back(std::move(number));
  }
  batch.parts.assign(std::make_move_iterator(begin), std::make_move_iterator(end));
  *begin = std::move(batch);
  queue.erase(begin + 1, end);
  device_.queued_ -= run.parts.size() - 1;
  ++stats_.batches;
  stats_.operators += run.parts.size();
  return true;
}

bool Batches::may_launch(const Queued& batch, bool compiled) {
  bool may = compiled;
  // Only what depends on lost contents is lost: one by one, launches find out.
  for (const Ref<DeviceStorage>& storage : batch.storages) may &= !storage || !storage->failure;
  if (may && batch.kernel->temporary_bytes()) {
    may = device_.memory().charge_temporaries(batch.kernel->temporary_bytes());
  }
  if (!may) ++stats_.taken_apart;
  return may;
}

void Batches::forget_parts(Queued& batch) {
  for (const Queued& part : batch.parts) {
    for (const Ref<DeviceStorage>& output : part.outputs) --output->pending_writes;
  }
  batch.parts.clear();
}

}  // namespace tn
