// The device generator: a Philox seed and an offset (decision D9).
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

namespace tn::torch_glue {

// What a generator advances. Generators that were joined by `graphsafe_set_state` share one.
struct PhiloxState final : c10::intrusive_ptr_target {
  std::mutex mutex;
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0;
};

// State as a tensor: 16 bytes, seed then offset, little-endian uint64.
class NeuronGenerator final : public c10::GeneratorImpl {
 public:
  explicit NeuronGenerator(c10::DeviceIndex device);
  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // Take over, and give, the state itself instead of a copy of its bytes.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  // Seed and offset for a launch that draws `increment` numbers; advances the offset.
  std::pair<uint64_t, uint64_t> reserve(uint64_t increment);
  // Undoes the last `reserve`, whose launch did not take place; nothing if something came between.
  void give_back(std::pair<uint64_t, uint64_t> reserved, uint64_t increment);

 private:
  NeuronGenerator* clone_impl() const override;
  std::pair<uint64_t, uint64_t> read() const;
  void write(uint64_t seed, uint64_t offset);
  c10::intrusive_ptr<PhiloxState> state_;
};

const at::Generator& default_generator(c10::DeviceIndex device);
// `given`, checked to be one of `device`'s, or the default generator.
NeuronGenerator& generator_or_default(const std::optional<at::Generator>& given,
                                      c10::DeviceIndex device);

}  // namespace tn::torch_glue
