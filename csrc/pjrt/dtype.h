// Element types: our enum, PyTorch's names, PJRT's numbers, sizes in bytes.

#ifndef TN_PJRT_DTYPE_H_
#define TN_PJRT_DTYPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "pjrt_c_api.h"

namespace tn {

// The values index kDTypes and may be stored in memory, never on disk (store
// the name).
enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF8E4M3FN,
  kF8E4M3FNUZ,
  kF8E5M2,
  kF8E5M2FNUZ,
  kF8E8M0FNU,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kC128,
};

struct DTypeInfo {
  DType dtype;
  PJRT_Buffer_Type pjrt;
  uint8_t size_bytes;
  std::string_view name;  // as in torch.<name>
};

inline constexpr std::array<DTypeInfo, 20> kDTypes = {{
    {DType::kBool, PJRT_Buffer_Type_PRED, 1, "bool"},
    {DType::kU8, PJRT_Buffer_Type_U8, 1, "uint8"},
    {DType::kI8, PJRT_Buffer_Type_S8, 1, "int8"},
    {DType::kI16, PJRT_Buffer_Type_S16, 2, "int16"},
    {DType::kU16, PJRT_Buffer_Type_U16, 2, "uint16"},
    {DType::kI32, PJRT_Buffer_Type_S32, 4, "int32"},
    {DType::kU32, PJRT_Buffer_Type_U32, 4, "uint32"},
    {DType::kI64, PJRT_Buffer_Type_S64, 8, "int64"},
    {DType::kU64, PJRT_Buffer_Type_U64, 8, "uint64"},
    {DType::kF8E4M3FN, PJRT_Buffer_Type_F8E4M3FN, 1, "float8_e4m3fn"},
    {DType::kF8E4M3FNUZ, PJRT_Buffer_Type_F8E4M3FNUZ, 1, "float8_e4m3fnuz"},
    {DType::kF8E5M2, PJRT_Buffer_Type_F8E5M2, 1, "float8_e5m2"},
    {DType::kF8E5M2FNUZ, PJRT_Buffer_Type_F8E5M2FNUZ, 1, "float8_e5m2fnuz"},
    {DType::kF8E8M0FNU, PJRT_Buffer_Type_F8E8M0FNU, 1, "float8_e8m0fnu"},
    {DType::kF16, PJRT_Buffer_Type_F16, 2, "float16"},
    {DType::kBF16, PJRT_Buffer_Type_BF16, 2, "bfloat16"},
    {DType::kF32, PJRT_Buffer_Type_F32, 4, "float32"},
    {DType::kF64, PJRT_Buffer_Type_F64, 8, "float64"},
    {DType::kC64, PJRT_Buffer_Type_C64, 8, "complex64"},
    {DType::kC128, PJRT_Buffer_Type_C128, 16, "complex128"},
}};

namespace dtype_internal {
constexpr bool in_order() {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(in_order(), "kDTypes must be in the order of DType");
}  // namespace dtype_internal

constexpr const DTypeInfo& dtype_info(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }
constexpr size_t dtype_size_bytes(DType dtype) { return dtype_info(dtype).size_bytes; }
constexpr std::string_view dtype_name(DType dtype) { return dtype_info(dtype).name; }
constexpr PJRT_Buffer_Type dtype_to_pjrt(DType dtype) { return dtype_info(dtype).pjrt; }

// Nothing for PJRT types without a PyTorch counterpart (tokens, 2 and 4 bit).
constexpr std::optional<DType> dtype_from_pjrt(PJRT_Buffer_Type type) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.pjrt == type) return info.dtype;
  }
  return std::nullopt;
}

// From PyTorch's name, e.g. "bfloat16"; nothing when unknown.
constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace tn

#endif  // TN_PJRT_DTYPE_H_
