#include "runtime/repeats.h"

#include "base/hash.h"

namespace tn {

std::optional<Loop> Repeats::add(Kernel* kernel, bool boundary_before) {
  const uint64_t now = count_++;
  Loop loop;
  bool run_came_again = false;
  if (boundary_before) {
    if ((run_came_again = end_run(now))) loop = loop_at(run_start_, now - run_start_);
    run_start_ = now;
    run_hash_ = 0;
  }
  run_hash_ = hash_combine(run_hash_, reinterpret_cast<uintptr_t>(kernel));
  kernels_[now % kHistory] = kernel;
  boundaries_[now % kHistory] = boundary_before;
  if (period_ && kernel_at(now - period_) == kernel) {
    ++equal_;
  } else {
    period_ = 0;
    reported_ = false;
  }
  if (now + 1 < kGram) return std::nullopt;
  std::array<Kernel*, kGram> place;
  for (size_t i = 0; i < kGram; ++i) place[i] = kernel_at(now - i);
  const uint64_t hash = hash_bytes(place.data(), sizeof(place));
  auto [it, fresh] = last_.try_emplace(hash, now);
  if (!fresh) {
    const uint64_t distance = now - it->second;
    it->second = now;
    if (!period_ && distance <= kLongest) {
      bool same = true;
      for (size_t i = 0; i < kGram; ++i) same &= kernel_at(now - distance - i) == place[i];
      if (same) {
        period_ = distance;
        equal_ = kGram;
        at_ = distance < kShort ? 2 * distance : distance;
      }
    }
  } else if (last_.size() > kTable) {
    last_.clear();
  }
  if (run_came_again) return loop;
  if (!period_ || reported_ || equal_ < at_) return std::nullopt;
  reported_ = true;
  at_ = equal_ + period_;  // should the caller want it again
  return loop_at(now + 1 - period_, period_);
}

Loop Repeats::loop_at(uint64_t first, uint64_t period) const {
  Loop loop;
  for (uint64_t i = first; i < first + period; ++i) {
    loop.kernels.push_back(kernel_at(i));
    loop.boundary_before.push_back(boundaries_[i % kHistory] ||
                                   (i >= period && boundaries_[(i - period) % kHistory]));
  }
  return loop;
}

// A boundary came: whether what ran since the last was the same twice before.
bool Repeats::end_run(uint64_t now) {
  equal_runs_ = run_hash_ == last_run_hash_ ? equal_runs_ + 1 : 0;
  last_run_hash_ = run_hash_;
  return equal_runs_ == 2 && now - run_start_ <= kLongest;
}

}  // namespace tn
