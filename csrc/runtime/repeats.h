// Finds loops in the order of launches: a run of kernels that comes again right after itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace tn {

class Kernel;

// One period of a loop.
struct Loop {
  std::vector<Kernel*> kernels;
  // Before which of them the program waited for the device in one of the last two rounds.
  std::vector<bool> boundary_before;
};

// Compares the launches with those one period earlier, where the period is the distance to the last
// place at which the same few kernels ran. A mismatch looks for another period, so an outer loop is
// found when an inner one ends. Costs one comparison and one table entry a launch.
class Repeats {
 public:
  static constexpr size_t kLongest = 4096;  // launches in a period

  // Adds a launch; `boundary_before`: the program waited for the device. A loop, when this launch
  // completes enough rounds of it.
  std::optional<Loop> add(Kernel* kernel, bool boundary_before);
  // The loop that was found cannot be used yet: find it again a round later.
  void again() {
    reported_ = false;
    equal_runs_ = equal_runs_ > 1 ? 1 : equal_runs_;
  }

 private:
  Loop loop_at(uint64_t first, uint64_t period) const;
  bool end_run(uint64_t now);
  static constexpr size_t kHistory = 4 * kLongest;
  static constexpr size_t kGram = 3;         // kernels that make a place
  static constexpr size_t kShort = 256;      // shorter loops must come round once more
  static constexpr size_t kTable = 1 << 14;  // places remembered, before all are forgotten

  Kernel* kernel_at(uint64_t i) const { return kernels_[i % kHistory]; }

  std::vector<Kernel*> kernels_ = std::vector<Kernel*>(kHistory);
  std::vector<uint8_t> boundaries_ = std::vector<uint8_t>(kHistory);
  uint64_t count_ = 0;
  uint64_t period_ = 0;  // 0: none
  uint64_t equal_ = 0;   // launches in a row that are those of a period earlier
  uint64_t at_ = 0;      // equal_ at which the loop is reported
  bool reported_ = false;
  // Launches since the last boundary: a loop, too, if the run before them was the same.
  uint64_t run_start_ = 0;
  uint64_t run_hash_ = 0;
  uint64_t last_run_hash_ = 0;
  uint32_t equal_runs_ = 0;
  std::unordered_map<uint64_t, uint64_t> last_;  // by the hash of a place
};

}  // namespace tn
