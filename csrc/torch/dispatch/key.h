// The key of a call, and what the call reads: built in one walk over the arguments (decision D4).
//
// Every argument enters the key by construction. Two things are operands instead of key: numbers
// that the operator's policy says so of, and the storage offset of a view. Both become 0-d launch
// parameters. A storage is one launch parameter however many arguments look at it.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace tn::torch_glue {

// What becomes of a number argument.
enum class NumberPolicy : uint8_t {
  kStatic,     // enters the key
  kOperand,    // a launch parameter
  kStaticOne,  // enters the key when it equals 1, else a launch parameter
  kWide,       // a launch parameter; floating-point ones always as float64
};

struct Parameter {
  DeviceStorage* storage = nullptr;  // null: a number
  DType dtype = DType::kF32;
  uint64_t bits = 0;
  uint64_t high_bits = 0;  // complex128 has 16 bytes
};

// How one leaf argument reaches the executable; the order is that of the walk.
struct Leaf {
  enum class Kind : uint8_t { kStatic, kTensor, kNumber };
  Kind kind = Kind::kStatic;
  bool weak = false;  // number: a Python number, not a 0-d tensor
  bool box = false;   // tensor: a box of the buffer's dimensions
  int16_t parameter = -1;
  int16_t offset_parameter = -1;  // tensor: holds the storage offset; -1: the offset is static
};

//
// Runtime::mutex must be held from construction to the last `add`.
class CallKey {
 public:
  CallKey();

  c10::SmallVector<uint64_t, 96> words;
  c10::SmallVector<Parameter, 24> parameters;
  c10::SmallVector<Leaf, 24> leaves;
  Device* device = nullptr;
  std::optional<at::Generator> generator;

  // Adds one argument. Throws for a dimensioned CPU tensor, naming it.
  void add(const c10::IValue& value, NumberPolicy policy);
  void add_tensor(const at::Tensor& tensor);
  // Chooses the dtype of floating-point numbers: call after the last argument.
  void finish();
  uint64_t hash() const;

 private:
  void add_number(uint64_t bits, DType dtype, bool weak);
  void add_scalar(const c10::IValue& value, NumberPolicy policy);
  void add_host_tensor(const at::Tensor& tensor);
  int16_t storage_parameter(DeviceStorage* storage, bool& fresh);
  [[noreturn]] void other_device(const at::Tensor& tensor) const;

  uint64_t serial_;
  // Doubles whose width the tensors decide.
  c10::SmallVector<int16_t, 4> doubles_;
  bool saw_double_tensor_ = false;
  bool saw_float_tensor_ = false;
};

// True when the view (sizes, strides, offset) of a row-major buffer shaped `dims` is a box of it.
// lowering/views.py decides the same way.
bool is_box(c10::IntArrayRef dims, c10::IntArrayRef sizes, c10::IntArrayRef strides,
            int64_t offset);

}  // namespace tn::torch_glue
