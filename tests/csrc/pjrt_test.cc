// Tests of csrc/base and csrc/pjrt against a real plugin; run by test_pjrt.py.
//
//   pjrt_test attributes PLUGIN        prints "name=value" lines
//   pjrt_test load_error PATH          prints the status of a failing load
//   pjrt_test run CASE PLUGIN DIR      runs one case; DIR holds the modules
//   pjrt_test cases                    prints the names of all cases

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/counters.h"
#include "base/hash.h"
#include "pjrt/client.h"

namespace {

using tn::Buffer;
using tn::Client;
using tn::DType;
using tn::Event;
using tn::Executable;
using tn::HostSemantics;
using tn::Plugin;
using tn::Status;
using tn::StatusCode;

int failures = 0;
int checks = 0;

#define CHECK(condition)                                                  \
  do {                                                                    \
    ++checks;                                                             \
    if (!(condition)) {                                                   \
      ++failures;                                                         \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                     \
  } while (false)

// The value of a result; ends the process with the status when there is none.
template <typename T>
T must(tn::Result<T> result, int line = __builtin_LINE()) {
  ++checks;
  if (!result.ok()) {
    std::printf("line %d: %s\n", line, result.status().to_string().c_str());
    std::exit(1);
  }
  return std::move(result).value();
}

void must(Status status, int line = __builtin_LINE()) {
  ++checks;
  if (!status.ok()) {
    std::printf("line %d: %s\n", line, status.to_string().c_str());
    std::exit(1);
  }
}

// A case's world: plugin, client, modules.
struct Fixture {
  std::string path;
  std::string directory;
  std::shared_ptr<Plugin> plugin;
  std::shared_ptr<Client> client;
  std::string options;

  Fixture(const char* plugin_path, const char* modules)
      : path(plugin_path), directory(modules), plugin(must(Plugin::load(path))) {
    client = must(Client::create(plugin, {}));
    options = read("options.pb");
  }

  std::string read(const std::string& name) const {
    std::ifstream file(directory + "/" + name, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (bytes.empty()) {
      std::printf("%s/%s is missing or empty\n", directory.c_str(), name.c_str());
      std::exit(1);
    }
    return bytes;
  }
  PJRT_Device* device() const { return client->devices().at(0); }
  Executable compile(const char* name) const {
    return must(client->compile(read(std::string(name) + ".mlirbc"), options));
  }
  template <typename T>
  Buffer upload(const std::vector<T>& data, DType dtype, std::vector<int64_t> dims) const {
    return must(client->from_host(data.data(), dtype, dims, device(),
                                  HostSemantics::kImmutableOnlyDuringCall, nullptr));
  }
  Buffer floats(float first, size_t n = 8) const {
    std::vector<float> data(n);
    std::iota(data.begin(), data.end(), first);
    return upload(data, DType::kF32, {static_cast<int64_t>(n)});
  }
};

template <typename T>
std::vector<T> download(const Buffer& buffer) {
  std::vector<T> data(must(buffer.size_bytes()) / sizeof(T));
  must(must(buffer.to_host(data.data(), data.size() * sizeof(T))).await());
  return data;
}

// Executes with one device and wraps the outputs.
tn::Result<std::vector<Buffer>> run(const Fixture& f, const Executable& executable,
                                    std::vector<const Buffer*> args,
                                    std::vector<int64_t> keep = {}) {
  std::vector<PJRT_Buffer*> raw;
  for (const Buffer* b : args) raw.push_back(b->get());
  std::vector<PJRT_Buffer*> outputs(executable.num_outputs(), nullptr);
  TN_RETURN_IF_ERROR(executable.execute(raw.data(), raw.size(), outputs.data(), f.device(),
                                        keep.data(), keep.size(), nullptr));
  std::vector<Buffer> result;
  for (PJRT_Buffer* b : outputs) result.emplace_back(f.client->api(), b);
  return result;
}

std::vector<float> sum_of(float a, float b, size_t n = 8) {
  std::vector<float> data(n);
  for (size_t i = 0; i < n; ++i) data[i] = a + b + 2 * static_cast<float>(i);
  return data;
}

// ---- csrc/base ----

tn::Result<std::unique_ptr<int>> half(int x) {
  if (x % 2 != 0) return tn::invalid_argument("odd");
  return std::make_unique<int>(x / 2);
}

tn::Result<int> quarter(int x) {
  TN_ASSIGN_OR_RETURN(std::unique_ptr<int> h, half(x));
  TN_ASSIGN_OR_RETURN(h, half(*h));
  return *h;
}

void test_status(const Fixture&) {
  CHECK(Status().ok() && Status().message().empty() && Status().to_string() == "OK");
  CHECK(Status(StatusCode::kOk, "ignored").ok());
  const Status bad = tn::not_found("it").with_prefix("where: ");
  CHECK(bad.code() == StatusCode::kNotFound && bad.message() == "where: it");
  CHECK(bad.to_string() == "NOT_FOUND: where: it");
  CHECK(must(quarter(12)) == 3);
  CHECK(quarter(3).status().code() == StatusCode::kInvalidArgument);
  CHECK(!quarter(6).ok());
  tn::Result<int> wrong = Status();
  CHECK(wrong.status().code() == StatusCode::kInternal);
}

void test_hash(const Fixture&) {
  // One flipped bit flips about half of the bits, at every length and place.
  std::vector<unsigned char> data(80);
  std::iota(data.begin(), data.end(), 1);
  int low = 64;
  int64_t total = 0;
  int64_t samples = 0;
  for (size_t size = 1; size <= data.size(); ++size) {
    const uint64_t base = tn::hash_bytes(data.data(), size);
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      data[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
      const int flipped = __builtin_popcountll(base ^ tn::hash_bytes(data.data(), size));
      data[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
      low = std::min(low, flipped);
      total += flipped;
      ++samples;
    }
  }
  CHECK(low >= 8);
  const double mean = static_cast<double>(total) / static_cast<double>(samples);
  CHECK(mean > 31.5 && mean < 32.5);
  // Zeros of different lengths, small integers and their order all differ.
  std::set<uint64_t> seen;
  const std::vector<unsigned char> zeros(1000, 0);
  for (size_t n = 0; n < zeros.size(); ++n) seen.insert(tn::hash_bytes(zeros.data(), n));
  for (uint64_t i = 1; i <= 100000; ++i) seen.insert(tn::hash_bytes(&i, sizeof(i)));
  for (uint64_t i = 0; i < 100; ++i) {
    for (uint64_t j = 0; j < 100; ++j) {
      seen.insert(tn::hash_combine(tn::hash_combine(17, i), j));
    }
  }
  CHECK(seen.size() == 1000 + 100000 + 10000);
  CHECK(tn::hash_bytes("abc") == tn::hash_bytes("abc"));
  CHECK(tn::hash_bytes("abc", 1) != tn::hash_bytes("abc", 2));
}

void test_counters(const Fixture& f) {
  tn::counters().reset();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 1000; ++i) tn::counters().fallbacks.add(2);
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(tn::counters().snapshot().fallbacks == 8000);
  const Executable add = f.compile("add");
  const Buffer a = f.floats(0);
  download<float>(must(run(f, add, {&a, &a}))[0]);
  const tn::CountersSnapshot s = tn::counters().snapshot();
  CHECK(s.compiles == 1 && s.launches == 1 && s.compile_ns > 0);
  CHECK(s.h2d_bytes == 32 && s.h2d_transfers == 1 && s.d2h_bytes == 32);
  size_t fields = 0;
  s.for_each([&](std::string_view name, std::string_view help, uint64_t) {
    CHECK(!name.empty() && !help.empty());
    ++fields;
  });
  CHECK(fields * sizeof(uint64_t) == sizeof(s));
  CHECK(tn::monotonic_ns() <= tn::monotonic_ns());
}

// ---- csrc/pjrt ----

void test_client(const Fixture& f) {
  CHECK(f.plugin->major() == 0 && f.plugin->minor() >= 81);
  CHECK(f.plugin->version() == "0." + std::to_string(f.plugin->minor()));
  CHECK(f.plugin->attributes().count("stablehlo_current_version") == 1);
  CHECK(f.client->platform_name() == "cpu");
  CHECK(!f.client->platform_version().empty());
  CHECK(f.client->descriptions().size() == f.client->devices().size());
  CHECK(!f.client->descriptions().at(0).kind.empty());
  CHECK(!f.client->descriptions().at(0).debug.empty());
  CHECK(Client::create(nullptr, {}).status().code() == StatusCode::kInvalidArgument);
  // A second load of the same path and a second client live beside the first.
  const auto again = must(Plugin::load(f.path));
  CHECK(again->api() == f.plugin->api());
  CHECK(!must(Client::create(again, {}))->devices().empty());
}

void test_several_devices(const Fixture& f) {
  const auto client = must(Client::create(f.plugin, {{"cpu_device_count", int64_t{3}}}));
  CHECK(client->devices().size() == 3);
  const Executable add = must(client->compile(f.read("add.mlirbc"), f.options));
  std::set<int> ids;
  for (size_t i = 0; i < client->devices().size(); ++i) {
    ids.insert(client->descriptions()[i].id);
    PJRT_Device* device = client->devices()[i];
    std::vector<float> data(8, static_cast<float>(i));
    const int64_t dims[] = {8};
    const Buffer a = must(client->from_host(data.data(), DType::kF32, dims, device,
                                            HostSemantics::kImmutableOnlyDuringCall, nullptr));
    PJRT_Buffer* args[] = {a.get(), a.get()};
    PJRT_Buffer* out = nullptr;
    must(add.execute(args, 2, &out, device, nullptr, 0, nullptr));
    const Buffer result(client->api(), out);
    CHECK(download<float>(result) == std::vector<float>(8, 2.0f * static_cast<float>(i)));
  }
  CHECK(ids.size() == 3);
}

void test_transfers(const Fixture& f) {
  // Every element type: bytes come back as they went, in 0, 1 and 2 dimensions.
  for (const tn::DTypeInfo& info : tn::kDTypes) {
    for (const std::vector<int64_t>& dims :
         {std::vector<int64_t>{}, std::vector<int64_t>{5}, std::vector<int64_t>{2, 3}}) {
      size_t n = info.size_bytes;
      for (int64_t d : dims) n *= static_cast<size_t>(d);
      std::vector<unsigned char> in(n);
      for (size_t i = 0; i < n; ++i) {
        in[i] = static_cast<unsigned char>(info.dtype == DType::kBool ? i % 2 : 40 + i % 20);
      }
      const auto buffer = f.client->from_host(in.data(), info.dtype, dims, f.device(),
                                              HostSemantics::kImmutableOnlyDuringCall, nullptr);
      CHECK(buffer.ok());
      if (!buffer.ok()) continue;
      CHECK(must(buffer->dtype()) == info.dtype);
      const auto shape = must(buffer->dims());
      CHECK(std::vector<int64_t>(shape.begin(), shape.end()) == dims);
      CHECK(must(buffer->size_bytes()) == n && must(buffer->on_device_size()) >= n);
      CHECK(download<unsigned char>(*buffer) == in);
    }
    CHECK(tn::dtype_from_name(info.name) == info.dtype);
    CHECK(tn::dtype_from_pjrt(info.pjrt) == info.dtype);
  }
  CHECK(!tn::dtype_from_name("quint8") && !tn::dtype_from_pjrt(PJRT_Buffer_Type_TOKEN));

  const Buffer a = f.floats(0);
  float small[4];
  CHECK(a.to_host(small, sizeof(small)).status().code() == StatusCode::kInvalidArgument);
  CHECK(a.to_host(nullptr, 32).status().code() == StatusCode::kInvalidArgument);
  // No elements: null pointers are welcome on both sides.
  const int64_t empty_dims[] = {0, 4};
  const Buffer empty = must(f.client->from_host(nullptr, DType::kF32, empty_dims, f.device(),
                                                HostSemantics::kImmutableOnlyDuringCall, nullptr));
  must(must(empty.to_host(nullptr, 0)).await());
  CHECK(must(empty.size_bytes()) == 0);

  const int64_t one[] = {1};
  const int64_t negative[] = {-1};
  CHECK(!f.client
             ->from_host(nullptr, DType::kF32, one, f.device(),
                         HostSemantics::kImmutableOnlyDuringCall, nullptr)
             .ok());
  CHECK(!f.client
             ->from_host(small, DType::kF32, negative, f.device(),
                         HostSemantics::kImmutableOnlyDuringCall, nullptr)
             .ok());
  CHECK(!f.client
             ->from_host(small, DType::kF32, one, f.device(),
                         HostSemantics::kImmutableUntilTransferCompletes, nullptr)
             .ok());
  Event done;
  std::vector<float> host = {1, 2, 3, 4};
  const int64_t four[] = {4};
  const Buffer later =
      must(f.client->from_host(host.data(), DType::kF32, four, f.device(),
                               HostSemantics::kImmutableUntilTransferCompletes, &done));
  must(done.await());
  host.assign(4, 0);
  CHECK(download<float>(later) == (std::vector<float>{1, 2, 3, 4}));
}

void test_zero_copy(const Fixture& f) {
  alignas(64) static float memory[16] = {7, 8, 9};
  const int64_t dims[] = {16};
  Event done;
  Buffer view = must(f.client->from_host(memory, DType::kF32, dims, f.device(),
                                         HostSemantics::kImmutableZeroCopy, &done));
  CHECK(must(view.unsafe_pointer()) == reinterpret_cast<uintptr_t>(memory));
  CHECK(download<float>(view)[2] == 9);
  CHECK(!done.ready());
  view.reset();
  must(done.await());
}

void test_null_handles(const Fixture&) {
  Buffer null;
  char byte;
  CHECK(null.is_null() && null.is_deleted());
  CHECK(null.ready_event().status().code() == StatusCode::kFailedPrecondition);
  CHECK(!null.to_host(&byte, 1).ok() && !null.on_device_size().ok() && !null.dims().ok());
  CHECK(!null.unsafe_pointer().ok() && !null.dtype().ok());
  Event event;
  CHECK(event.ready() && event.await().ok() && event.status().ok());
  bool called = false;
  event.on_ready([&](Status s) { called = s.ok(); });
  CHECK(called);
  const Executable executable;
  CHECK(!executable.serialize().ok() && !executable.memory_stats().ok());
  CHECK(executable.execute(nullptr, 0, nullptr, nullptr, nullptr, 0, nullptr).code() ==
        StatusCode::kFailedPrecondition);
}

void test_execute(const Fixture& f) {
  const Executable add = f.compile("add");
  CHECK(add.num_outputs() == 1 && add.outputs()[0].dtype == DType::kF32);
  CHECK(add.outputs()[0].dims == std::vector<int64_t>{8});
  const Buffer a = f.floats(1);
  const Buffer b = f.floats(10);
  const auto out = must(run(f, add, {&a, &b}));
  CHECK(download<float>(out[0]) == sum_of(1, 10));
  CHECK(!a.is_deleted() && !b.is_deleted());

  PJRT_Buffer* args[] = {a.get(), b.get()};
  PJRT_Buffer* raw = nullptr;
  PJRT_Event* complete = nullptr;
  must(add.execute(args, 2, &raw, f.device(), nullptr, 0, &complete));
  const Buffer result(f.client->api(), raw);
  Event event(f.client->api(), complete);
  must(event.await());
  CHECK(event.ready() && event.status().ok());
  const Event ready = must(result.ready_event());
  must(ready.await());

  // Moves leave nothing behind.
  Executable moved = f.compile("add");
  Executable target = std::move(moved);
  CHECK(moved.is_null() && !target.is_null() && target.num_outputs() == 1);
  target = f.compile("several");
  CHECK(target.num_outputs() == 3);
}

void test_outputs(const Fixture& f) {
  const Executable several = f.compile("several");
  CHECK(several.num_outputs() == 3);
  CHECK(several.outputs()[0].dims == (std::vector<int64_t>{3, 2}));
  CHECK(several.outputs()[1].dtype == DType::kI64 && several.outputs()[1].dims.empty());
  CHECK(several.outputs()[2].dtype == DType::kBool);
  const Buffer x = f.upload(std::vector<float>{0, 1, 2, 3, 4, 5}, DType::kF32, {2, 3});
  const auto out = must(run(f, several, {&x}));
  CHECK(download<float>(out[0]) == (std::vector<float>{0, 3, 1, 4, 2, 5}));
  CHECK(download<int64_t>(out[1]) == std::vector<int64_t>{15});
  CHECK(download<uint8_t>(out[2]) == (std::vector<uint8_t>{0, 0, 0, 1, 1, 1}));
}

void test_reads(const Fixture& f) {
  // Two ways to read, with memory in row-major and in column-major order.
  static constexpr char kColumns[] = R"(
module @columns attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<2x3xf32> {mhlo.layout_mode = "default"})
      -> (tensor<2x3xf32> {mhlo.layout_mode = "{0,1}"}) {
    %y = stablehlo.add %x, %x : tensor<2x3xf32>
    return %y : tensor<2x3xf32>
  }
})";
  const Executable columns = must(f.client->compile(kColumns, f.options));
  const Buffer x = f.upload(std::vector<float>{0, 1, 2, 3, 4, 5}, DType::kF32, {2, 3});
  const auto out = must(run(f, columns, {&x}));
  must(must(out[0].ready_event()).await());
  float memory[6];
  std::memcpy(memory, reinterpret_cast<const void*>(must(out[0].unsafe_pointer())), sizeof(memory));
  CHECK(memory[1] == 6);  // The plugin did choose columns.
  std::vector<float> read(6);
  if (f.plugin->minor() < 106) {  // This plugin cannot permute: no numbers, not wrong ones.
    CHECK(out[0].read(read.data(), 24).code() == StatusCode::kUnimplemented);
    CHECK(out[0].to_host(read.data(), 24).status().code() == StatusCode::kUnimplemented);
  } else {
    must(out[0].read(read.data(), 24));
    CHECK(read == (std::vector<float>{0, 2, 4, 6, 8, 10}));
    CHECK(download<float>(out[0]) == read);
  }
  must(x.read(read.data(), 24));
  CHECK(read == (std::vector<float>{0, 1, 2, 3, 4, 5}));

  const uint64_t bytes = tn::counters().d2h_bytes.get();
  const Buffer scalar = f.upload(std::vector<int64_t>{-7}, DType::kI64, {});
  int64_t value = 0;
  must(scalar.read(&value, sizeof(value)));
  CHECK(value == -7 && tn::counters().d2h_bytes.get() == bytes + 8);
  CHECK(scalar.read(&value, 4).code() == StatusCode::kInvalidArgument);
  CHECK(scalar.read(nullptr, 8).code() == StatusCode::kInvalidArgument);
  CHECK(Buffer().read(&value, 8).code() == StatusCode::kFailedPrecondition);

  // Reading leaves the buffer fit for donation in place.
  const Executable increment = f.compile("increment");
  const Buffer kept = f.floats(1);
  CHECK(kept.read(read.data(), 24).code() == StatusCode::kInvalidArgument);
  std::vector<float> all(8);
  must(kept.read(all.data(), 32));
  const uintptr_t place = must(kept.unsafe_pointer());
  const auto next = must(run(f, increment, {&kept}));
  CHECK(kept.is_deleted() && must(next[0].unsafe_pointer()) == place);
  CHECK(all[0] == 1 && download<float>(next[0])[0] == 2);

  // Waits for work in flight: a large result, and a small one that follows it.
  const Executable slow = f.compile("slow");
  const Buffer m = f.upload(std::vector<float>(256 * 256, 0.001f), DType::kF32, {256, 256});
  const auto late = must(run(f, slow, {&m}));
  const auto small = must(run(f, f.compile("corner"), {&late[0]}));
  float corner = 1;
  must(small[0].read(&corner, sizeof(corner)));
  std::vector<float> a(256 * 256);
  must(late[0].read(a.data(), a.size() * 4));
  CHECK(a == download<float>(late[0]) && a[0] == corner);
  // A donated buffer is refused.
  const Buffer gone = f.floats(1);
  must(run(f, increment, {&gone}));
  CHECK(!gone.read(a.data(), 32).ok());
}

void test_donation(const Fixture& f) {
  const Executable increment = f.compile("increment");
  const Buffer x = f.floats(1);
  must(must(x.ready_event()).await());
  const uintptr_t before = must(x.unsafe_pointer());
  auto out = must(run(f, increment, {&x}));
  CHECK(x.is_deleted());
  CHECK(must(out[0].unsafe_pointer()) == before);
  CHECK(download<float>(out[0])[0] == 2);
  // A consumed buffer is refused with a status.
  CHECK(!run(f, increment, {&x}).ok());
  float value[8];
  const auto read = x.to_host(value, sizeof(value));
  CHECK(!read.ok() || !read->await().ok());

  const Buffer y = f.floats(1);
  const auto kept = must(run(f, increment, {&y}, {0}));
  CHECK(!y.is_deleted());
  CHECK(download<float>(y)[0] == 1 && download<float>(kept[0])[0] == 2);
}

void test_serialize(const Fixture& f) {
  std::string bytes;
  {
    const Executable add = f.compile("add");
    bytes = must(add.serialize());
  }
  CHECK(!bytes.empty());
  const int64_t before = static_cast<int64_t>(tn::counters().snapshot().compiles);
  // In the client that compiled it, and in a new one.
  const auto other = must(Client::create(f.plugin, {}));
  for (const auto& client : {f.client, other}) {
    for (const std::string& options : {std::string(), f.options}) {
      const Executable add = must(client->deserialize(bytes, options));
      CHECK(add.num_outputs() == 1 && add.outputs()[0].dims == std::vector<int64_t>{8});
      std::vector<float> host(8, 3);
      const int64_t dims[] = {8};
      PJRT_Device* device = client->devices().at(0);
      const Buffer a = must(client->from_host(host.data(), DType::kF32, dims, device,
                                              HostSemantics::kImmutableOnlyDuringCall, nullptr));
      PJRT_Buffer* args[] = {a.get(), a.get()};
      PJRT_Buffer* out = nullptr;
      must(add.execute(args, 2, &out, device, nullptr, 0, nullptr));
      CHECK(download<float>(Buffer(client->api(), out)) == std::vector<float>(8, 6));
    }
  }
  CHECK(static_cast<int64_t>(tn::counters().snapshot().compiles) == before);
  // Donation survives the round trip.
  const Executable increment =
      must(f.client->deserialize(must(f.compile("increment").serialize()), ""));
  const Buffer x = f.floats(1);
  const auto out = must(run(f, increment, {&x}));
  CHECK(x.is_deleted() && download<float>(out[0])[0] == 2);
}

void test_memory_stats(const Fixture& f) {
  const auto stats = must(f.compile("increment").memory_stats());
  CHECK(stats.argument_bytes == 32 && stats.output_bytes >= 32 && stats.alias_bytes == 32);
  CHECK(stats.temp_bytes >= 0);
  const auto plain = must(f.compile("add").memory_stats());
  CHECK(plain.argument_bytes == 64 && plain.alias_bytes == 0);
}

void test_events(const Fixture& f) {
  const Executable slow = f.compile("slow");
  const Buffer x = f.upload(std::vector<float>(256 * 256, 0.001f), DType::kF32, {256, 256});
  const auto out = must(run(f, slow, {&x}));
  std::mutex mutex;
  std::condition_variable condition;
  int calls = 0;
  Status seen = tn::internal_error("not called");
  {
    const Event event = must(out[0].ready_event());
    event.on_ready([&](Status status) {
      std::lock_guard<std::mutex> lock(mutex);
      seen = status;
      ++calls;
      condition.notify_all();
    });
  }  // Destroyed, perhaps before it is ready: the callback still comes.
  std::unique_lock<std::mutex> lock(mutex);
  condition.wait(lock, [&] { return calls > 0; });
  CHECK(seen.ok() && calls == 1);
  lock.unlock();
  // A buffer and an executable may go while their launch is in flight.
  {
    Executable temporary = f.compile("slow");
    auto running = must(run(f, temporary, {&x}));
    const Event event = must(running[0].ready_event());
    running.clear();
    temporary.reset();
    must(event.await());
  }
}

void test_bad_launches(const Fixture& f) {
  const Executable add = f.compile("add");
  const Buffer a = f.floats(0);
  const uint64_t errors = tn::counters().launch_errors.get();
  PJRT_Buffer* args[] = {a.get(), a.get(), a.get()};
  for (size_t n : {0, 1, 3}) {
    PJRT_Buffer* out = a.get();  // Must be overwritten.
    PJRT_Event* event = reinterpret_cast<PJRT_Event*>(&out);
    const Status status = add.execute(args, n, &out, f.device(), nullptr, 0, &event);
    CHECK(!status.ok() && status.code() != StatusCode::kUnknown && !status.message().empty());
    CHECK(out == nullptr && event == nullptr);
    if (n == 3) std::printf("%s\n", status.to_string().c_str());
  }
  CHECK(tn::counters().launch_errors.get() == errors + 3);
  // The options name no device, so the call must.
  {
    PJRT_Buffer* out = nullptr;
    CHECK(!add.execute(args, 2, &out, nullptr, nullptr, 0, nullptr).ok() && out == nullptr);
  }
  // Wrong size of an argument: an error now, or a failed output; never numbers.
  const Buffer small = f.floats(0, 4);
  const auto result = run(f, add, {&a, &small});
  CHECK(!result.ok() || !must((*result)[0].ready_event()).await().ok());
  CHECK(download<float>(must(run(f, add, {&a, &a}))[0]) == sum_of(0, 0));
}

void test_bad_programs(const Fixture& f) {
  for (const std::string& program :
       {std::string("garbage"), f.read("add.mlirbc").substr(0, 100),
        std::string("module { func.func @main() { \"no.such_op\"() : () -> () return } }")}) {
    const Status status = f.client->compile(program, f.options).status();
    CHECK(!status.ok() && !status.message().empty());
  }
  CHECK(!f.client->compile(f.read("add.mlirbc"), "\xff\xff\xff garbage").ok());
  const std::string good = must(f.compile("add").serialize());
  for (const std::string& bytes : {std::string("garbage"), good.substr(0, good.size() / 2)}) {
    const Status status = f.client->deserialize(bytes, "").status();
    CHECK(!status.ok() && !status.message().empty());
    std::printf("%s\n", status.to_string().c_str());
  }
}

void test_threads(const Fixture& f) {
  const Executable add = f.compile("add");
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const Buffer a = f.floats(static_cast<float>(t));
        const Buffer b = f.floats(static_cast<float>(i));
        const auto out = must(run(f, add, {&a, &b}));
        if (download<float>(out[0]) == sum_of(static_cast<float>(t), static_cast<float>(i))) {
          ++right;
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(right == 400);
}

struct Case {
  const char* name;
  void (*function)(const Fixture&);
};

constexpr Case kCases[] = {
    {"status", test_status},
    {"hash", test_hash},
    {"counters", test_counters},
    {"client", test_client},
    {"several_devices", test_several_devices},
    {"transfers", test_transfers},
    {"zero_copy", test_zero_copy},
    {"null_handles", test_null_handles},
    {"execute", test_execute},
    {"outputs", test_outputs},
    {"reads", test_reads},
    {"donation", test_donation},
    {"serialize", test_serialize},
    {"memory_stats", test_memory_stats},
    {"events", test_events},
    {"bad_launches", test_bad_launches},
    {"bad_programs", test_bad_programs},
    {"threads", test_threads},
};

struct PrintValue {
  void operator()(const std::string& v) const { std::printf("%s", v.c_str()); }
  void operator()(int64_t v) const { std::printf("%lld", static_cast<long long>(v)); }
  void operator()(double v) const { std::printf("%g", v); }
  void operator()(bool v) const { std::printf("%d", v); }
  void operator()(const std::vector<int64_t>& v) const {
    for (size_t i = 0; i < v.size(); ++i) {
      std::printf("%s%lld", i == 0 ? "" : ".", static_cast<long long>(v[i]));
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "cases") {
    for (const Case& c : kCases) std::printf("%s\n", c.name);
    return 0;
  }
  if (command == "attributes" && argc == 3) {
    const auto plugin = must(Plugin::load(argv[2]));
    for (const auto& [name, value] : plugin->attributes()) {
      std::printf("%s=", name.c_str());
      std::visit(PrintValue(), value);
      std::printf("\n");
    }
    return 0;
  }
  if (command == "load_error" && argc == 3) {
    const auto plugin = Plugin::load(argv[2]);
    std::printf("%s\n", plugin.status().to_string().c_str());
    return plugin.ok() ? 1 : 0;
  }
  if (command == "run" && argc == 5) {
    for (const Case& c : kCases) {
      if (c.name != std::string(argv[2])) continue;
      c.function(Fixture(argv[3], argv[4]));
      std::printf("%d checks, %d failures\n", checks, failures);
      return failures == 0 && checks > 0 ? 0 : 1;
    }
  }
  std::printf("usage: see the top of pjrt_test.cc\n");
  return 2;
}
