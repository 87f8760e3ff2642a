// A fast 64-bit hash of bytes for in-memory tables: 128-bit multiply-and-fold
// mixing. Not cryptographic, and not stable between machines of different byte
// order: never store it, and confirm equal hashes by comparing keys.

#ifndef TN_BASE_HASH_H_
#define TN_BASE_HASH_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tn {
namespace hash_internal {

// Odd constants from the binary expansions of the square roots of 2, 3, 5, 7.
inline constexpr uint64_t kK0 = 0x6a09e667f3bcc909u;
inline constexpr uint64_t kK1 = 0xbb67ae8584caa73bu;
inline constexpr uint64_t kK2 = 0x3c6ef372fe94f82bu;
inline constexpr uint64_t kK3 = 0xa54ff53a5f1d36f1u;

inline uint64_t read8(const unsigned char* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}
inline uint64_t read4(const unsigned char* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
// High and low half of the 128-bit product, folded together.
inline uint64_t fold(uint64_t a, uint64_t b) {
  const unsigned __int128 m = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
}

}  // namespace hash_internal

// Mixes one word into a running hash. Order matters.
inline uint64_t hash_combine(uint64_t seed, uint64_t value) {
  using namespace hash_internal;
  return fold(seed ^ kK0, value ^ kK1) ^ fold(value ^ kK2, seed ^ kK3);
}

// Hash of `size` bytes at `data`; `data` may be null when size is 0.
inline uint64_t hash_bytes(const void* data, size_t size, uint64_t seed = 0) {
  using namespace hash_internal;
  const unsigned char* p = static_cast<const unsigned char*>(data);
  size_t left = size;
  uint64_t h = seed ^ kK0;
  if (left > 32) {  // Two independent lanes hide the multiplier's latency.
    uint64_t h2 = seed ^ kK1;
    do {
      h = fold(read8(p) ^ kK1, read8(p + 8) ^ h);
      h2 = fold(read8(p + 16) ^ kK2, read8(p + 24) ^ h2);
      p += 32;
      left -= 32;
    } while (left > 32);
    h ^= h2;
  }
  if (left > 16) {
    h = fold(read8(p) ^ kK2, read8(p + 8) ^ h);
    p += 16;
    left -= 16;
  }
  uint64_t a = 0;
  uint64_t b = 0;
  if (left >= 8) {  // The two reads overlap when fewer than 16 bytes are left.
    a = read8(p);
    b = read8(p + left - 8);
  } else if (left >= 4) {
    a = read4(p);
    b = read4(p + left - 4);
  } else if (left > 0) {
    a = (uint64_t{p[0]} << 16) | (uint64_t{p[left >> 1]} << 8) | p[left - 1];
  }
  return fold(kK3 ^ size, fold(a ^ kK1, b ^ h));
}

inline uint64_t hash_bytes(std::string_view bytes, uint64_t seed = 0) {
  return hash_bytes(bytes.data(), bytes.size(), seed);
}

}  // namespace tn

#endif  // TN_BASE_HASH_H_
