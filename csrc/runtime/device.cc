#include "runtime/device.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/counters.h"

namespace tn {
namespace {

constexpr size_t kNumberCacheLimit = 4096;
constexpr size_t kPruneAbove = 64;
constexpr size_t kRunAheadLimit = 8192;  // launches in flight before issuing waits for the oldest
constexpr size_t kWordLimit = 256;       // error words kept before the oldest are looked at

std::string at_line(const std::string& line) { return line.empty() ? "" : ", issued at " + line; }

std::string replaced(std::string text, int64_t value) {
  const std::string mark = "{value}";
  for (size_t at; (at = text.find(mark)) != std::string::npos;) {
    text.replace(at, mark.size(), std::to_string(value));
  }
  return text;
}

}  // namespace

Device::Device(int index, Client* client, PJRT_Device* device, std::unique_ptr<Arena> arena)
    : index_(index), client_(client), device_(device), arena_(std::move(arena)) {}

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

void Device::record_error(DeviceError error) {
  if (first_error_) {
    ++later_errors_;
  } else {
    first_error_ = std::move(error);
  }
}

void Device::poison(const Launch& launch, std::shared_ptr<const std::string> why) {
  for (DeviceStorage* storage : launch.outputs) {
    storage->buffer = {};
    storage->failure = why;
  }
}

void Device::prune() {
  while (!in_flight_.empty() &&
         (in_flight_.size() > kRunAheadLimit || in_flight_.front().event.ready())) {
    InFlight& oldest = in_flight_.front();
    if (Status status = oldest.event.await(); !status.ok()) {
      record_error({"RuntimeError", oldest.kernel->name() + ": " + status.message()});
    }
    in_flight_.pop_front();
  }
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
      Result<Buffer> buffer = client_->from_host(&bits, DType::kU64, {}, device_,
                                                 HostSemantics::kImmutableOnlyDuringCall, nullptr);
      if (!buffer.ok()) {
        auto why = std::make_shared<const std::string>(buffer.status().message());
        record_error({"RuntimeError", launch.kernel->name() + ": " + *why});
        return poison(launch, why);
      }
      Ref<DeviceBuffer>& ref = rng[p - launch.params.size()];
      ref = Ref<DeviceBuffer>(new DeviceBuffer(std::move(buffer).value()));
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
      ++later_errors_;
      poison(launch, storage.failure);
      for (int32_t w : signature.writes) {
        launch.params[w].storage->buffer = {};
        launch.params[w].storage->failure = storage.failure;
      }
      return;
    }
    if (!storage.buffer) {
      if (Status status = materialize(storage); !status.ok()) {
        auto why = std::make_shared<const std::string>(status.message());
        record_error({"RuntimeError", launch.kernel->name() + ": " + *why});
        return poison(launch, why);
      }
    }
    args[i] = storage.buffer->get();
    // A buffer that somebody else still holds is copied instead of donated.
    if (storage.buffer->use_count() > 1) {
      for (int32_t w : signature.writes) {
        if (static_cast<size_t>(w) == p) add_shared(static_cast<int64_t>(i));
      }
    }
  }

  PJRT_Event* event = nullptr;
  Status status =
      executable.execute(args, num_args, results, device_,
                         num_shared > 8 ? heap_shared.data() : inline_shared, num_shared, &event);
  if (!status.ok()) {
    const std::string line = launch.line ? *launch.line : "";
    auto why = std::make_shared<const std::string>(launch.kernel->name() + ": " + status.message() +
                                                   at_line(line));
    record_error({"RuntimeError", *why});
    poison(launch, why);
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
  if (!signature.checks.empty()) {
    words_.push_back({Ref<DeviceBuffer>(new DeviceBuffer(Buffer(client_->api(), results[next]))),
                      launch.kernel, launch.line ? *launch.line : std::string()});
    if (words_.size() > kWordLimit) look_at_oldest_words();
  }
  Event done(client_->api(), event);
  // Small programs are over when the call returns.
  if (!done.ready() || !done.status().ok()) {
    in_flight_.push_back({std::move(done), launch.kernel});
    if (in_flight_.size() > kPruneAbove) prune();
  }
  counters().launches.add();
}

std::optional<DeviceError> Device::error_of(const ErrorWord& word) {
  int64_t value[2] = {0, 0};
  // A failed read has its cause in a failed launch, which is reported by itself.
  if (!word.buffer->buffer().read(value, sizeof(value)).ok() || value[0] == 0) return std::nullopt;
  const IndexCheck& check = word.kernel->signature().checks[value[0] - 1];
  std::string text = replaced(check.message, value[1]);
  text += " (" + word.kernel->name() + at_line(word.line) + ")";
  return DeviceError{check.exception, text};
}

// A program that never synchronises must not keep every word it ever made.
void Device::look_at_oldest_words() {
  for (size_t i = 0; i < kWordLimit / 2; ++i) {
    if (std::optional<DeviceError> error = error_of(words_.front())) record_error(*error);
    words_.pop_front();
  }
}

bool Device::submit(const Launch& launch) {
  if (!queue_.empty()) advance();
  if (queue_.empty() && launch.kernel->state() == KernelState::kReady) {
    std::shared_ptr<Executable> executable = launch.kernel->resident();
    if (!executable) return false;
    launch_now(launch, *executable);
    return true;
  }
  Queued queued;
  queued.kernel = launch.kernel;
  for (const LaunchParam& param : launch.params) {
    queued.storages.emplace_back(param.storage);
    queued.numbers.emplace_back(param.number);
  }
  for (DeviceStorage* output : launch.outputs) {
    queued.outputs.emplace_back(output);
    ++output->pending_writes;
  }
  queued.uses_rng = launch.uses_rng;
  queued.seed = launch.seed;
  queued.offset = launch.offset;
  if (launch.line) queued.line = *launch.line;
  queue_.push_back(std::move(queued));
  return true;
}

bool Device::head_ready(bool& needs_reload) {
  needs_reload = false;
  Kernel& kernel = *queue_.front().kernel;
  if (kernel.state() == KernelState::kPending) return false;
  if (kernel.state() == KernelState::kReady && !kernel.resident()) {
    needs_reload = true;
    return false;
  }
  return true;
}

void Device::launch_head(std::shared_ptr<Executable> executable) {
  Queued head = std::move(queue_.front());
  queue_.pop_front();
  std::vector<LaunchParam> params;
  params.reserve(head.storages.size());
  for (size_t i = 0; i < head.storages.size(); ++i) {
    params.push_back({head.storages[i].get(), head.numbers[i].get()});
  }
  std::vector<DeviceStorage*> outputs;
  outputs.reserve(head.outputs.size());
  for (auto& output : head.outputs) outputs.push_back(output.get());
  Launch launch{head.kernel, params, outputs, head.uses_rng, head.seed, head.offset, &head.line};
  for (DeviceStorage* output : outputs) --output->pending_writes;
  if (executable) {
    launch_now(launch, *executable);
    return;
  }
  auto why = std::make_shared<const std::string>(head.kernel->error() + at_line(head.line));
  record_error({"RuntimeError", *why});
  poison(launch, why);
}

void Device::advance() {
  bool needs_reload = false;
  while (!queue_.empty() && head_ready(needs_reload)) {
    Kernel& kernel = *queue_.front().kernel;
    launch_head(kernel.state() == KernelState::kReady ? kernel.resident() : nullptr);
  }
}

void Device::drain(std::unique_lock<std::mutex>& lock) {
  while (!queue_.empty()) {
    bool needs_reload = false;
    if (head_ready(needs_reload)) {
      Kernel& kernel = *queue_.front().kernel;
      launch_head(kernel.state() == KernelState::kReady ? kernel.resident() : nullptr);
      continue;
    }
    Kernel* kernel = queue_.front().kernel;
    lock.unlock();
    if (needs_reload) {
      if (Status status = kernel->reload(); !status.ok()) kernel->set_failed(status.message());
    } else {
      bool said = !Runtime::get()->options().progress;
      while (!kernel->wait(said ? 60.0 : 2.0)) {
        if (said) continue;
        said = true;
        std::fprintf(stderr, "torchneuron: compiling %s ...\n", kernel->name().c_str());
      }
    }
    lock.lock();
  }
}

bool Device::idle() {
  advance();
  prune();
  return queue_.empty() && in_flight_.empty();
}

std::optional<DeviceError> Device::synchronize(std::unique_lock<std::mutex>& lock) {
  drain(lock);
  std::deque<InFlight> running = std::move(in_flight_);
  std::deque<ErrorWord> words = std::move(words_);
  in_flight_.clear();
  words_.clear();
  lock.unlock();
  std::vector<DeviceError> errors;
  for (InFlight& launch : running) {
    if (Status status = launch.event.await(); !status.ok()) {
      errors.push_back({"RuntimeError", launch.kernel->name() + ": " + status.message()});
    }
  }
  for (const ErrorWord& word : words) {
    if (std::optional<DeviceError> error = error_of(word)) errors.push_back(*error);
  }
  words.clear();
  lock.lock();
  for (DeviceError& error : errors) record_error(std::move(error));
  std::optional<DeviceError> first = std::exchange(first_error_, std::nullopt);
  if (first && later_errors_) {
    first->message += "\n(" + std::to_string(later_errors_) + " later operator(s) failed with it)";
  }
  later_errors_ = 0;
  return first;
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
    TN_ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, Arena::reserve(options.hbm_bytes));
    runtime->devices_.push_back(
        std::make_unique<Device>(i, runtime->client_.get(), found[i], std::move(arena)));
  }
  runtime->store.configure(options.executable_limit_bytes, std::move(loader));
  // Whoever starts the runtime: a child has the memory of it and none of its threads.
  pthread_atfork(nullptr, nullptr, [] { forked().store(true, std::memory_order_relaxed); });
  g_runtime = runtime.release();  // lives as long as the process: threads may still launch at exit
  return Status();
}

}  // namespace tn
