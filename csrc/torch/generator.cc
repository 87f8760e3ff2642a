#include "torch/generator.h"

#include <ATen/Functions.h>
#include <ATen/Utils.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "torch/runtime.h"

namespace tn::torch_glue {

NeuronGenerator::NeuronGenerator(c10::DeviceIndex device)
    : GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, device),
                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void NeuronGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

void NeuronGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK(offset % 4 == 0, "a Philox offset must be a multiple of 4, got ", offset);
  offset_ = offset;
}

uint64_t NeuronGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

std::pair<uint64_t, uint64_t> NeuronGenerator::reserve(uint64_t increment) {
  std::lock_guard lock(mutex_);
  const std::pair<uint64_t, uint64_t> now{seed_, offset_};
  offset_ += increment;
  return now;
}

void NeuronGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == 16, "a neuron RNG state has 16 bytes (seed, offset), got ",
              state.numel());
  uint64_t words[2];
  std::memcpy(words, state.data(), sizeof(words));
  set_current_seed(words[0]);
  set_offset(words[1]);
}

c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  at::Tensor state = at::empty({16}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  const uint64_t words[2] = {seed_, offset_};
  std::memcpy(state.mutable_data_ptr(), words, sizeof(words));
  return state.getIntrusivePtr();
}

NeuronGenerator* NeuronGenerator::clone_impl() const {
  auto* copy = new NeuronGenerator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::vector<at::Generator>* generators = new std::vector<at::Generator>;
  std::lock_guard lock(mutex);
  if (device < 0) device = static_cast<c10::DeviceIndex>(current_device());
  const int count = num_devices();
  TORCH_CHECK(device < count, "invalid device ordinal: neuron:", static_cast<int>(device),
              " (this process has ", count, " neuron device(s))");
  if (generators->empty()) {
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
  return *static_cast<NeuronGenerator*>(given->unsafeGetGeneratorImpl());
}

}  // namespace tn::torch_glue
