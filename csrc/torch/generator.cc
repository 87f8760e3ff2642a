#include "torch/generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/Utils.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "torch/runtime.h"

namespace tn::torch_glue {

namespace {
void check_offset(uint64_t offset) {
  TORCH_CHECK(offset % 4 == 0, "a Philox offset must be a multiple of 4, got ", offset);
}
}  // namespace

NeuronGenerator::NeuronGenerator(c10::DeviceIndex device)
    : GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, device),
                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(c10::make_intrusive<PhiloxState>()) {}

std::pair<uint64_t, uint64_t> NeuronGenerator::read() const {
  std::lock_guard lock(state_->mutex);
  return {state_->seed, state_->offset};
}

void NeuronGenerator::write(uint64_t seed, uint64_t offset) {
  std::lock_guard lock(state_->mutex);
  state_->seed = seed;
  state_->offset = offset;
}

void NeuronGenerator::set_current_seed(uint64_t seed) { write(seed, 0); }
uint64_t NeuronGenerator::current_seed() const { return read().first; }
uint64_t NeuronGenerator::get_offset() const { return read().second; }

void NeuronGenerator::set_offset(uint64_t offset) {
  check_offset(offset);
  write(current_seed(), offset);
}

uint64_t NeuronGenerator::seed() {
  const uint64_t seed = c10::detail::getNonDeterministicRandom();
  set_current_seed(seed);
  return seed;
}

std::pair<uint64_t, uint64_t> NeuronGenerator::reserve(uint64_t increment) {
  std::lock_guard lock(state_->mutex);
  const std::pair<uint64_t, uint64_t> now{state_->seed, state_->offset};
  state_->offset += increment;
  return now;
}

void NeuronGenerator::give_back(std::pair<uint64_t, uint64_t> reserved, uint64_t increment) {
  std::lock_guard lock(state_->mutex);
  if (state_->seed == reserved.first && state_->offset == reserved.second + increment) {
    state_->offset = reserved.second;
  }
}

void NeuronGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == 16, "a neuron RNG state has 16 bytes (seed, offset), got ",
              state.numel());
  const void* bytes = state.data();
  TORCH_CHECK(bytes,
              "expected a neuron RNG state with values, got a fake or meta tensor. Take the "
              "state, and set it, outside of FakeTensorMode.");
  uint64_t words[2];
  std::memcpy(words, bytes, sizeof(words));
  check_offset(words[1]);
  write(words[0], words[1]);
}

c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  // Not dispatched: a mode that makes fake tensors would give one without memory.
  at::Tensor state = at::detail::empty_cpu({16}, at::kByte, /*pin_memory=*/false);
  const auto [seed, offset] = read();
  const uint64_t words[2] = {seed, offset};
  std::memcpy(state.mutable_data_ptr(), words, sizeof(words));
  return state.getIntrusivePtr();
}

void NeuronGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  auto* generator = dynamic_cast<NeuronGenerator*>(other.get());
  TORCH_CHECK(generator, "expected the state of a neuron generator");
  state_ = generator->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> NeuronGenerator::graphsafe_get_state() const {
  auto twin = c10::make_intrusive<NeuronGenerator>(device().index());
  twin->state_ = state_;
  return twin;
}

NeuronGenerator* NeuronGenerator::clone_impl() const {
  auto* copy = new NeuronGenerator(device().index());
  const auto [seed, offset] = read();
  copy->write(seed, offset);
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::vector<at::Generator>* generators = new std::vector<at::Generator>;
  std::lock_guard lock(mutex);
  device = static_cast<c10::DeviceIndex>(checked_device(device));
  if (generators->empty()) {
    const int count = std::max(num_devices(), 1);
    generators->reserve(count);  // references that were handed out stay valid
    for (int i = 0; i < count; ++i) {
      generators->push_back(at::make_generator<NeuronGenerator>(static_cast<c10::DeviceIndex>(i)));
    }
  }
  return (*generators)[device];
}

NeuronGenerator& generator_or_default(const std::optional<at::Generator>& given,
                                      c10::DeviceIndex device) {
  if (!given.has_value() || !given->defined()) {
    return *static_cast<NeuronGenerator*>(default_generator(device).unsafeGetGeneratorImpl());
  }
  TORCH_CHECK(given->device().type() == c10::DeviceType::PrivateUse1,
              "Expected a 'neuron' device type for generator but found '", given->device().type(),
              "'");
  TORCH_CHECK(given->device().index() == device, "Expected a 'neuron:", static_cast<int>(device),
              "' generator device but found '", given->device(), "'");
  return *static_cast<NeuronGenerator*>(given->unsafeGetGeneratorImpl());
}

}  // namespace tn::torch_glue
