#include "runtime/device.h"
#include "runtime/batches.h"
#include "runtime/recorder.h"
#include "runtime/segments.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/counters.h"

namespace tn {
namespace {

constexpr size_t kNumberCacheLimit = 4096;
constexpr int64_t kPoolStreams = 32;  // of each priority, as CUDA's pools have

LineFinder g_line_finder = nullptr;
BatchStarter g_batch_starter = nullptr;
// Tickets order what is queued, across streams and devices. Guarded by Runtime::mutex.
uint64_t g_last_ticket = 0;

}  // namespace

std::string Device::line_of(const Launch& launch) {
  if (launch.line) return *launch.line;
  return g_line_finder ? g_line_finder() : std::string();
}

void set_line_finder(LineFinder finder) { g_line_finder = finder; }

void set_batch_starter(BatchStarter starter) { g_batch_starter = starter; }

Device::Device(int index, Client* client, PJRT_Device* device,
               std::unique_ptr<SegmentAllocator> memory)
    : index_(index),
      client_(client),
      device_(device),
      memory_(std::move(memory)),
      recorder_(std::make_unique<Recorder>(*this)),
      batches_(std::make_unique<Batches>(*this)) {
  by_id_.resize(1 + kPoolStreams * (kLowestPriority - kHighestPriority + 1));
  by_id_[0] = std::make_unique<Stream>(*this, 0, kLowestPriority);
  by_priority_.push_back(by_id_[0].get());
}

Stream* Device::stream(int64_t id) {
  if (id < 0 || id >= static_cast<int64_t>(by_id_.size())) return nullptr;
  if (!by_id_[id]) {
    const int priority = kLowestPriority - static_cast<int>((id - 1) / kPoolStreams);
    by_id_[id] = std::make_unique<Stream>(*this, id, priority);
    auto place = std::upper_bound(
        by_priority_.begin(), by_priority_.end(), by_id_[id].get(),
        [](const Stream* a, const Stream* b) { return a->priority < b->priority; });
    by_priority_.insert(place, by_id_[id].get());
  }
  return by_id_[id].get();
}

Stream& Device::stream_from_pool(int priority) {
  const int pool = kLowestPriority - std::clamp(priority, kHighestPriority, kLowestPriority);
  const auto turn = static_cast<int64_t>(next_in_pool_[pool]++ % kPoolStreams);
  return *stream(1 + pool * kPoolStreams + turn);
}

Device::~Device() = default;

Result<Ref<DeviceBuffer>> Device::number(DType dtype, uint64_t bits, uint64_t high_bits) {
  const NumberKey key{dtype, bits, high_bits};
  if (auto it = numbers_.find(key); it != numbers_.end()) return it->second;
  const uint64_t words[2] = {bits, high_bits};
  TN_ASSIGN_OR_RETURN(Buffer buffer,
                      client_->from_host(words, dtype, {}, device_,
                                         HostSemantics::kImmutableOnlyDuringCall, nullptr));
  Ref<DeviceBuffer> ref(new DeviceBuffer(std::move(buffer)));
  if (numbers_.size() >= kNumberCacheLimit) numbers_.clear();
  numbers_.emplace(key, ref);
  return ref;
}

Result<Ref<DeviceBuffer>> Device::fresh_number(uint64_t value) {
  TN_ASSIGN_OR_RETURN(Buffer buffer,
                      client_->from_host(&value, DType::kU64, {}, device_,
                                         HostSemantics::kImmutableOnlyDuringCall, nullptr));
  return Ref<DeviceBuffer>(new DeviceBuffer(std::move(buffer)));
}

Status Device::materialize(DeviceStorage& storage) {
  const size_t bytes = storage.layout.numel() * dtype_size_bytes(storage.layout.dtype);
  std::unique_ptr<void, decltype(&std::free)> zeros(std::calloc(bytes ? bytes : 1, 1), &std::free);
  if (!zeros) return Status(StatusCode::kResourceExhausted, "no host memory for zeros");
  TN_ASSIGN_OR_RETURN(
      Buffer buffer, client_->from_host(zeros.get(), storage.layout.dtype, storage.layout.dims,
                                        device_, HostSemantics::kImmutableOnlyDuringCall, nullptr));
  storage.buffer = Ref<DeviceBuffer>(new DeviceBuffer(std::move(buffer)));
  return Status();
}

void Device::poison(const Launch& launch, std::shared_ptr<const std::string> why) {
  for (DeviceStorage* storage : launch.outputs) {
    storage->buffer = {};
    storage->failure = why;
  }
}

std::shared_ptr<const std::string> Device::fail(const Launch& launch, const Status& status) {
  auto why = std::make_shared<const std::string>(
      status.message() + " " + launch.stream->context(launch.kernel, line_of(launch)));
  launch.stream->record_error({exception_for(status.code()), *why, launch.number});
  poison(launch, why);
  return why;
}

void Device::launch_now(const Launch& launch, Executable& executable) {
  const KernelSignature& signature = launch.kernel->signature();
  const size_t num_args = signature.kept.size();
  const size_t num_outputs = launch.outputs.size();
  const size_t num_results =
      num_outputs + signature.writes.size() + (signature.checks.empty() ? 0 : 1);

  constexpr size_t kInline = 32;
  PJRT_Buffer* inline_args[kInline];
  PJRT_Buffer* inline_results[kInline];
  std::vector<PJRT_Buffer*> heap_args, heap_results;
  PJRT_Buffer** args = inline_args;
  PJRT_Buffer** results = inline_results;
  if (num_args > kInline) {
    heap_args.resize(num_args);
    args = heap_args.data();
  }
  if (num_results > kInline) {
    heap_results.resize(num_results);
    results = heap_results.data();
  }

  Ref<DeviceBuffer> rng[2];
  int64_t inline_shared[8];
  std::vector<int64_t> heap_shared;
  size_t num_shared = 0;
  auto add_shared = [&](int64_t position) {
    if (num_shared < 8) {
      inline_shared[num_shared] = position;
    } else {
      if (num_shared == 8) heap_shared.assign(inline_shared, inline_shared + 8);
      heap_shared.push_back(position);
    }
    ++num_shared;
  };

  for (size_t i = 0; i < num_args; ++i) {
    const size_t p = signature.kept[i];
    if (p >= launch.params.size()) {
      const uint64_t bits = p == launch.params.size() ? launch.seed : launch.offset;
      Result<Ref<DeviceBuffer>> number = fresh_number(bits);
      if (!number.ok()) {
        fail(launch, number.status());
        return;
      }
      Ref<DeviceBuffer>& ref = rng[p - launch.params.size()];
      ref = std::move(number).value();
      args[i] = ref->get();
      continue;
    }
    const LaunchParam& param = launch.params[p];
    if (param.number) {
      args[i] = param.number->get();
      continue;
    }
    DeviceStorage& storage = *param.storage;
    if (storage.failure) {
      launch.stream->count_victim();
      poison(launch, storage.failure);
      for (int32_t w : signature.writes) {
        launch.params[w].storage->buffer = {};
        launch.params[w].storage->failure = storage.failure;
      }
      return;
    }
    if (!storage.buffer) {
      if (Status status = materialize(storage); !status.ok()) {
        fail(launch, status);
        return;
      }
    }
    args[i] = storage.buffer->get();
    // A buffer that somebody else still holds is copied instead of donated.
    if (storage.buffer->use_count() > 1) {
      for (int32_t w : signature.writes) {
        if (static_cast<size_t>(w) == p) add_shared(static_cast<int64_t>(i));
      }
    }
    // The recorder has the one reference to what is dropped.
    if (!signature.donated.empty() &&
        (storage.use_count() > 1 || storage.buffer->use_count() > 1)) {
      for (int32_t d : signature.donated) {
        if (static_cast<size_t>(d) == p) add_shared(static_cast<int64_t>(i));
      }
    }
  }

  // Where there is one device, executables are bound to it (compiler/session.py). To a launch that
  // names a device, plugins of XLA copy the compile options to see whether they are portable.
  PJRT_Device* const named = client_->devices().size() == 1 ? nullptr : device_;
  PJRT_Event* event = nullptr;
  Status status =
      executable.execute(args, num_args, results, named,
                         num_shared > 8 ? heap_shared.data() : inline_shared, num_shared, &event);
  if (!status.ok()) {
    if (launch.refused && std::ranges::none_of(launch.params, [](const LaunchParam& param) {
          return param.storage && param.storage->buffer &&
                 param.storage->buffer->buffer().is_deleted();
        })) {
      *launch.refused = true;
      return;
    }
    const auto why = fail(launch, status);
    for (int32_t w : signature.writes) {
      DeviceStorage& storage = *launch.params[w].storage;
      if (storage.buffer && storage.buffer->buffer().is_deleted()) {
        storage.buffer = {};
        storage.failure = why;
      }
    }
    return;
  }
  for (size_t i = 0; i < num_outputs; ++i) {
    launch.outputs[i]->buffer =
        Ref<DeviceBuffer>(new DeviceBuffer(Buffer(client_->api(), results[i])));
  }
  size_t next = num_outputs;
  for (int32_t w : signature.writes) {
    DeviceStorage& storage = *launch.params[w].storage;
    storage.buffer = Ref<DeviceBuffer>(new DeviceBuffer(Buffer(client_->api(), results[next++])));
    storage.failure = nullptr;
  }
  Ref<DeviceBuffer> word;
  if (!signature.checks.empty()) {
    word = Ref<DeviceBuffer>(new DeviceBuffer(Buffer(client_->api(), results[next])));
  }
  Event done(client_->api(), event);
  // Small programs are over when the call returns.
  const bool over = done.ready();
  if (over) {
    if (Status failed = done.status(); !failed.ok()) {
      const auto why = fail(launch, failed);
      for (int32_t w : signature.writes) {
        launch.params[w].storage->buffer = {};
        launch.params[w].storage->failure = why;
      }
      return;
    }
  }
  if (!over || word) {
    const std::string line = line_of(launch);
    if (word) {
      launch.stream->push_word({std::move(word), launch.kernel, line, launch.number});
    }
    if (!over) {
      launch.stream->push(Ref<Work>(new Work(std::move(done), launch.kernel, line, launch.number)));
    }
  }
  counters().launches.add();
}

bool Device::submit(Launch& launch) {
  launch.number = next_number();
  if (queued_) advance();
  if (recorder_->take(launch)) return true;
  if ((!queued_ || !in_the_way(launch)) && launch.kernel->state() == KernelState::kReady) {
    std::shared_ptr<Executable> executable = launch.kernel->resident();
    if (!executable) return false;
    launch_now(launch, *executable);
    return true;
  }
  enqueue(launch);
  return true;
}

void Device::launch_or_queue(const Launch& launch) {
  if (queued_) advance();
  if ((!queued_ || !in_the_way(launch)) && launch.kernel->state() == KernelState::kReady) {
    if (std::shared_ptr<Executable> executable = launch.kernel->resident()) {
      launch_now(launch, *executable);
      return;
    }
  }
  enqueue(launch);
}

void Device::enqueue(const Launch& launch) {
  Queued& queued = enqueue(*launch.stream);
  queued.kernel = launch.kernel;
  for (const LaunchParam& param : launch.params) {
    queued.storages.emplace_back(param.storage);
    queued.numbers.emplace_back(param.number);
    if (DeviceStorage* storage = param.storage) {
      if (storage->queued_on && storage->queued_on != launch.stream &&
          !storage->queued_on->handed_over(storage->queued_as)) {
        queued.after.emplace_back(storage->queued_on, storage->queued_as);
      }
      storage->queued_on = launch.stream;
      storage->queued_as = queued.ticket;
    }
  }
  for (DeviceStorage* output : launch.outputs) {
    queued.outputs.emplace_back(output);
    ++output->pending_writes;
    output->queued_on = launch.stream;
    output->queued_as = queued.ticket;
  }
  queued.uses_rng = launch.uses_rng;
  queued.seed = launch.seed;
  queued.offset = launch.offset;
  queued.number = launch.number;
  queued.line = line_of(launch);
  if (launch.kernel->deferred()) batches_->enqueued();
}

Queued& Device::enqueue(Stream& stream) {
  ++queued_;
  Queued& queued = stream.queue.emplace_back();
  queued.ticket = ++g_last_ticket;
  return queued;
}

// Whether something queued must be handed over first: of the same stream, or with a storage that
// the launch uses. A queued launch whose kernel still compiles may write any of its arguments.
bool Device::in_the_way(const Launch& launch) const {
  if (!launch.stream->queue.empty()) return true;
  for (const LaunchParam& param : launch.params) {
    const DeviceStorage* storage = param.storage;
    if (storage && storage->queued_on && !storage->queued_on->handed_over(storage->queued_as)) {
      return true;
    }
  }
  return false;
}

std::shared_ptr<Recording> Device::record(Stream& stream, bool timing) {
  recorder_->flush(Flush::kEvent);
  auto recording = std::make_shared<Recording>(&stream, timing);
  if (queued_) advance();
  batches_->hurry();
  if (stream.queue.empty()) {
    stream.issue(*recording);
  } else {
    Queued& queued = enqueue(stream);
    queued.record = recording;
    recording->ticket = queued.ticket;
  }
  return recording;
}

void Device::wait(Stream& stream, const std::shared_ptr<Recording>& recording) {
  recorder_->flush(Flush::kEvent);
  if (queued_) advance();
  if (stream.queue.empty() && recording->issued) {
    stream.push_wait(recording);
  } else {
    enqueue(stream).wait = recording;
  }
}

Device::Hold Device::hold_of(const Queued& head) {
  for (const auto& [stream, ticket] : head.after) {
    if (!stream->handed_over(ticket)) return {Hold::Kind::kStream, stream, ticket};
  }
  if (head.wait && !head.wait->issued) {
    return {Hold::Kind::kStream, head.wait->stream, head.wait->ticket};
  }
  if (head.kernel) {
    if (head.kernel->state() == KernelState::kPending) return {Hold::Kind::kCompile};
    if (head.kernel->state() == KernelState::kReady) {
      std::shared_ptr<Executable> executable = head.kernel->resident();
      if (!executable) return {Hold::Kind::kReload};
      return {Hold::Kind::kNothing, nullptr, 0, std::move(executable)};
    }
  }
  return {};
}

void Device::take_apart_head(Stream& stream) {
  std::vector<Queued> parts = std::move(stream.queue.front().parts);
  stream.queue.pop_front();
  queued_ += parts.size() - 1;
  for (Queued& part : parts) {
    part.alone = true;
    batches_->enqueued();
  }
  stream.queue.insert(stream.queue.begin(), std::make_move_iterator(parts.begin()),
                      std::make_move_iterator(parts.end()));
}

// The head of the queue, which nothing holds. A launch without an executable failed to compile.
void Device::hand_over_head(Stream& stream, std::shared_ptr<Executable> executable) {
  if (!stream.queue.front().parts.empty() &&
      !batches_->may_launch(stream.queue.front(), executable != nullptr)) {
    return take_apart_head(stream);
  }
  Queued head = std::move(stream.queue.front());
  stream.queue.pop_front();
  --queued_;
  if (head.record) return stream.issue(*head.record);
  if (head.wait) return stream.push_wait(head.wait);
  std::vector<LaunchParam> params;
  params.reserve(head.storages.size());
  for (size_t i = 0; i < head.storages.size(); ++i) {
    params.push_back({head.storages[i].get(), head.numbers[i].get()});
  }
  std::vector<DeviceStorage*> outputs;
  outputs.reserve(head.outputs.size());
  for (auto& output : head.outputs) outputs.push_back(output.get());
  Launch launch{head.kernel, &stream,     params,      outputs,   head.uses_rng,
                head.seed,   head.offset, head.number, &head.line};
  const bool batch = !head.parts.empty();
  if (batch) {
    Batches::forget_parts(head);
  } else {
    for (DeviceStorage* output : outputs) --output->pending_writes;
  }
  if (executable) {
    const size_t temporaries = batch ? 0 : head.kernel->temporary_bytes();  // charged already
    if (temporaries && !memory_->charge_temporaries(temporaries)) {
      memory_->note_out_of_memory(temporaries, nullptr);
      fail(launch, Status(StatusCode::kResourceExhausted,
                          "Neuron out of memory. Tried to allocate " + std::to_string(temporaries) +
                              " bytes for temporaries"));
      return;
    }
    launch_now(launch, *executable);
  } else {
    fail(launch, internal_error(head.kernel->error()));
  }
}

void Device::advance() {
  for (bool moved = true; moved && queued_;) {
    moved = false;
    for (Stream* stream : by_priority_) {
      while (!stream->queue.empty()) {
        Hold hold = hold_of(stream->queue.front());
        if (hold.kind != Hold::Kind::kNothing) break;
        hand_over_head(*stream, std::move(hold.executable));
        moved = true;
      }
    }
  }
}

void Device::drain(std::unique_lock<std::mutex>& lock) {
  recorder_->flush(Flush::kRead);
  while (queued_) {
    for (size_t i = 0; i < by_priority_.size(); ++i) {
      Stream& stream = *by_priority_[i];
      if (!stream.queue.empty()) drain(stream, stream.queue.back().ticket, lock);
    }
  }
}

void Device::drain(Stream& stream, uint64_t ticket, std::unique_lock<std::mutex>& lock) {
  stream.device.recorder_->flush(Flush::kRead);
  while (!stream.handed_over(ticket)) {
    const Queued& head = stream.queue.front();
    Kernel* kernel = head.kernel;
    Hold hold = stream.device.hold_of(head);
    switch (hold.kind) {
      case Hold::Kind::kNothing:
        stream.device.hand_over_head(stream, std::move(hold.executable));
        break;
      case Hold::Kind::kStream:
        drain(*hold.stream, hold.ticket, lock);  // of lower tickets, so this ends
        break;
      case Hold::Kind::kReload:
        lock.unlock();
        if (Status status = kernel->reload(); !status.ok()) kernel->set_failed(status.message());
        lock.lock();
        break;
      case Hold::Kind::kCompile: {
        if (stream.device.batches_->fresh()) {
          stream.device.batches_->hurry();
          lock.unlock();
          g_batch_starter(stream.device);
          lock.lock();
          break;
        }
        lock.unlock();
        bool said = !Runtime::get()->options().progress;
        while (!kernel->wait(said ? 60.0 : 2.0)) {
          if (said) continue;
          said = true;
          std::fprintf(stderr, "torchneuron: compiling %s ...\n", kernel->name().c_str());
        }
        lock.lock();
        break;
      }
    }
  }
}

void Device::drain_uses(DeviceStorage& storage, Stream& stream,
                        std::unique_lock<std::mutex>& lock) {
  stream.device.recorder_->flush(Flush::kRead);
  if (!stream.queue.empty()) drain(stream, stream.queue.back().ticket, lock);
  if (storage.queued_on) drain(*storage.queued_on, storage.queued_as, lock);
}

bool Device::idle(Stream& stream) {
  stream.device.recorder_->flush(Flush::kEvent);
  stream.device.advance();
  stream.device.batches_->hurry();
  return stream.queue.empty() && stream.finished(stream.issued());
}

bool Device::complete(Recording& recording) {
  recording.stream->device.recorder_->flush(Flush::kEvent);
  recording.stream->device.advance();
  recording.stream->device.batches_->hurry();
  return recording.issued && recording.stream->finished(recording.sequence);
}

std::optional<DeviceError> Device::synchronize(std::unique_lock<std::mutex>& lock) {
  drain(lock);
  std::vector<Stream*> settled;
  for (size_t i = 0; i < by_priority_.size(); ++i) {
    Stream& stream = *by_priority_[i];
    stream.settle(stream.issued(), stream.num_words(), lock, settled);
  }
  return Stream::take_errors(settled);
}

std::optional<DeviceError> Device::synchronize(Stream& stream, std::unique_lock<std::mutex>& lock) {
  stream.device.recorder_->flush(Flush::kRead);
  if (!stream.queue.empty()) drain(stream, stream.queue.back().ticket, lock);
  std::vector<Stream*> settled;
  stream.settle(stream.issued(), stream.num_words(), lock, settled);
  return Stream::take_errors(settled);
}

std::optional<DeviceError> Device::synchronize(Recording& recording,
                                               std::unique_lock<std::mutex>& lock) {
  if (!recording.issued) drain(*recording.stream, recording.ticket, lock);
  std::vector<Stream*> settled;
  recording.stream->settle(recording.sequence, recording.num_words, lock, settled);
  return Stream::take_errors(settled);
}

namespace {
Runtime* g_runtime = nullptr;
}

Runtime* Runtime::get() { return g_runtime; }

Status Runtime::start(const RuntimeOptions& options, ExecutableStore::Loader loader) {
  if (g_runtime) return Status(StatusCode::kAlreadyExists, "the runtime was already started");
  std::unique_ptr<Runtime> runtime(new Runtime);
  runtime->options_ = options;
  TN_ASSIGN_OR_RETURN(runtime->plugin_, Plugin::load(options.plugin_path));
  TN_ASSIGN_OR_RETURN(runtime->client_, Client::create(runtime->plugin_, options.client_options));
  const auto& found = runtime->client_->devices();
  if (static_cast<int>(found.size()) < options.num_devices) {
    return Status(StatusCode::kInvalidArgument, "TORCH_NEURONX_NUM_DEVICES asks for " +
                                                    std::to_string(options.num_devices) +
                                                    " devices, plugin " + options.plugin_path +
                                                    " has " + std::to_string(found.size()));
  }
  for (int i = 0; i < options.num_devices; ++i) {
    TN_ASSIGN_OR_RETURN(auto memory, SegmentAllocator::create(options.hbm_bytes));
    runtime->devices_.push_back(
        std::make_unique<Device>(i, runtime->client_.get(), found[i], std::move(memory)));
  }
  runtime->store.configure(options.executable_limit_bytes, std::move(loader));
  // Whoever starts the runtime: a child has the memory of it and none of its threads.
  pthread_atfork(nullptr, nullptr, [] { forked().store(true, std::memory_order_relaxed); });
  g_runtime = runtime.release();  // lives as long as the process: threads may still launch at exit
  return Status();
}

}  // namespace tn
