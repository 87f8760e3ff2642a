#include "torch/dispatch/key.h"

#include <ATen/core/Tensor.h>

#include <cstring>
#include <string_view>

#include "base/hash.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

enum Tag : uint64_t {
  kNone = 1,
  kTensor,
  kNumber,
  kInt,
  kDouble,
  kBool,
  kComplex,
  kString,
  kList,
  kIgnored,
};

enum TensorFlag : uint64_t {
  kFreshParameter = 1 << 0,
  kSameLayout = 1 << 1,    // sizes and dtype are the buffer's
  kContiguous = 1 << 2,    // row-major strides
  kStaticOffset = 1 << 3,  // covers the buffer from its start
  kBox = 1 << 4,
};

uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

uint64_t float_bits(double value) {
  const float narrow = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof(bits));
  return bits;
}

}  // namespace

bool is_box(c10::IntArrayRef dims, c10::IntArrayRef sizes, c10::IntArrayRef strides,
            int64_t offset) {
  constexpr size_t kMaxDims = 16;
  const size_t rank = dims.size();
  if (rank > kMaxDims) return false;
  int64_t base[kMaxDims];
  int64_t extent[kMaxDims];
  bool used[kMaxDims] = {};
  int64_t stride = 1;
  for (size_t d = rank; d-- > 0;) {
    base[d] = stride;
    stride *= dims[d] > 0 ? dims[d] : 1;
    extent[d] = 1;
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1 || strides[i] == 0) continue;
    bool found = false;
    for (size_t d = 0; d < rank && !found; ++d) {
      if (base[d] == strides[i] && dims[d] >= sizes[i] && dims[d] > 1 && !used[d]) {
        used[d] = true;
        extent[d] = sizes[i];
        found = true;
      }
    }
    if (!found) return false;
  }
  for (size_t d = 0; d < rank; ++d) {
    if (dims[d] == 0) return false;
    const int64_t start = offset / base[d];
    offset %= base[d];
    if (start + extent[d] > dims[d]) return false;
  }
  return true;
}

CallKey::CallKey() {
  static uint64_t serials = 0;
  serial_ = ++serials;
}

uint64_t CallKey::hash() const { return hash_bytes(words.data(), words.size() * sizeof(uint64_t)); }

void CallKey::other_device(const at::Tensor& tensor) const {
  const std::string ours = device ? "neuron:" + std::to_string(device->index()) : "neuron";
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, ",
              ours, " and ", tensor.device(),
              "! Move the tensor with .to(\"neuron\"); only 0-d CPU tensors may be mixed in.");
}

int16_t CallKey::storage_parameter(DeviceStorage* storage, bool& fresh) {
  fresh = storage->seen_by != serial_;
  if (fresh) {
    storage->seen_by = serial_;
    storage->seen_as = static_cast<int32_t>(parameters.size());
    parameters.push_back({storage, storage->layout.dtype, 0});
  }
  return static_cast<int16_t>(storage->seen_as);
}

void CallKey::add_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    words.push_back(kNone);
    leaves.push_back({});
    return;
  }
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->device_type() != c10::DeviceType::PrivateUse1) {
    add_host_tensor(tensor);
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(impl->layout() == c10::Layout::Strided,
                              "only strided neuron tensors have device storage, got layout ",
                              impl->layout());
  const DType dtype = to_dtype(c10::typeMetaToScalarType(impl->dtype()));
  DeviceStorage* storage = storage_of(tensor);
  TORCH_CHECK(storage, "a neuron tensor without storage cannot be used");
  if (!device) {
    device = storage->device;
  } else if (device != storage->device) {
    other_device(tensor);
  }
  if (dtype == DType::kF64 || dtype == DType::kC128) saw_double_tensor_ = true;
  if (c10::isFloatingType(to_scalar_type(dtype)) || c10::isComplexType(to_scalar_type(dtype))) {
    saw_float_tensor_ = true;
  }

  bool fresh;
  Leaf leaf;
  leaf.kind = Leaf::Kind::kTensor;
  leaf.parameter = storage_parameter(storage, fresh);
  const c10::IntArrayRef sizes = impl->sizes();
  const Layout& layout = storage->layout;
  const int64_t offset = impl->storage_offset();
  uint64_t flags = fresh ? kFreshParameter : 0;
  const bool contiguous = impl->is_contiguous();
  const bool same_dtype = layout.dtype == dtype;
  if (contiguous) flags |= kContiguous;
  if (contiguous && offset == 0 && same_dtype && sizes == c10::IntArrayRef(layout.dims)) {
    flags |= kSameLayout | kStaticOffset;
  } else if (offset == 0 && same_dtype && impl->numel() == layout.numel() &&
             (contiguous || impl->is_non_overlapping_and_dense())) {
    flags |= kStaticOffset;
  } else if (impl->numel() == 0) {
    flags |= kStaticOffset;
  } else if (same_dtype && is_box(layout.dims, sizes, impl->strides(), offset)) {
    flags |= kBox;
    leaf.box = true;
  }
  words.push_back(kTensor | flags << 8 | static_cast<uint64_t>(dtype) << 16 |
                  static_cast<uint64_t>(leaf.parameter) << 24 |
                  static_cast<uint64_t>(sizes.size()) << 40 |
                  static_cast<uint64_t>(impl->is_conj() ? 1 : 0) << 56 |
                  static_cast<uint64_t>(impl->is_neg() ? 1 : 0) << 57);
  for (int64_t n : sizes) words.push_back(static_cast<uint64_t>(n));
  if (!contiguous) {
    for (int64_t n : impl->strides()) words.push_back(static_cast<uint64_t>(n));
  }
  if (fresh && !(flags & kSameLayout)) {
    words.push_back(static_cast<uint64_t>(layout.dtype) | layout.dims.size() << 8);
    for (int64_t n : layout.dims) words.push_back(static_cast<uint64_t>(n));
  }
  if (!(flags & kStaticOffset)) {
    leaf.offset_parameter = static_cast<int16_t>(parameters.size());
    parameters.push_back({nullptr, DType::kI64, static_cast<uint64_t>(offset)});
  }
  leaves.push_back(leaf);
}

// A CPU tensor of no dimensions is a number; any other is on the wrong device.
void CallKey::add_host_tensor(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() || tensor.dim() != 0 || tensor.layout() != c10::kStrided) {
    other_device(tensor);
  }
  const bool weak = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  const DType dtype = to_dtype(tensor.scalar_type());
  if (weak && dtype == DType::kC128) {
    const auto value = *static_cast<const c10::complex<double>*>(tensor.const_data_ptr());
    add_number(float_bits(value.real()) | float_bits(value.imag()) << 32, DType::kC64, true);
    return;
  }
  if (weak && dtype == DType::kF64) {
    doubles_.push_back(static_cast<int16_t>(parameters.size()));
    add_number(bits_of(*static_cast<const double*>(tensor.const_data_ptr())), DType::kF64, true);
    return;
  }
  uint64_t bits[2] = {0, 0};
  std::memcpy(bits, tensor.const_data_ptr(), dtype_size_bytes(dtype));
  if (!weak && (dtype == DType::kF64 || dtype == DType::kC128)) saw_double_tensor_ = true;
  add_number(bits[0], dtype, weak);
  parameters.back().high_bits = bits[1];
}

void CallKey::add_number(uint64_t bits, DType dtype, bool weak) {
  Leaf leaf;
  leaf.kind = Leaf::Kind::kNumber;
  leaf.weak = weak;
  leaf.parameter = static_cast<int16_t>(parameters.size());
  parameters.push_back({nullptr, dtype, bits});
  leaves.push_back(leaf);
  words.push_back(kNumber | static_cast<uint64_t>(weak) << 8 | static_cast<uint64_t>(dtype) << 16);
}

void CallKey::add_scalar(const c10::IValue& value, NumberPolicy policy) {
  if (value.isDouble()) {
    const double number = value.toDouble();
    if (policy == NumberPolicy::kWide) {
      add_number(bits_of(number), DType::kF64, true);
      return;
    }
    if (policy == NumberPolicy::kOperand || (policy == NumberPolicy::kStaticOne && number != 1.0)) {
      doubles_.push_back(static_cast<int16_t>(parameters.size()));
      add_number(bits_of(number), DType::kF64, true);
      return;
    }
    words.push_back(kDouble);
    words.push_back(bits_of(number));
  } else if (value.isBool()) {
    if (policy == NumberPolicy::kOperand || policy == NumberPolicy::kWide) {
      add_number(value.toBool() ? 1 : 0, DType::kBool, true);
      return;
    }
    words.push_back(kBool | static_cast<uint64_t>(value.toBool()) << 8);
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    words.push_back(kComplex);
    words.push_back(bits_of(number.real()));
    words.push_back(bits_of(number.imag()));
  } else {
    const int64_t number = value.toInt();
    if (policy == NumberPolicy::kOperand || policy == NumberPolicy::kWide ||
        (policy == NumberPolicy::kStaticOne && number != 1)) {
      add_number(static_cast<uint64_t>(number), DType::kI64, true);
      return;
    }
    words.push_back(kInt);
    words.push_back(static_cast<uint64_t>(number));
  }
  leaves.push_back({});
}

void CallKey::add(const c10::IValue& value, NumberPolicy policy) {
  if (value.isTensor()) {
    add_tensor(value.toTensor());
  } else if (value.isNone()) {
    words.push_back(kNone);
    leaves.push_back({});
  } else if (value.isScalar()) {
    add_scalar(value, policy);
  } else if (value.isTensorList()) {
    const auto list = value.toTensorVector();
    words.push_back(kList | list.size() << 8);
    for (const at::Tensor& tensor : list) add_tensor(tensor);
  } else if (value.isIntList()) {
    const auto list = value.toIntVector();
    words.push_back(kInt | list.size() << 8 | uint64_t{1} << 63);
    for (int64_t n : list) words.push_back(static_cast<uint64_t>(n));
    leaves.push_back({});
  } else if (value.isList()) {
    const auto list = value.toListRef();
    words.push_back(kList | list.size() << 8 | uint64_t{1} << 63);
    for (const c10::IValue& element : list) add(element, policy);
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    words.push_back(kString | text.size() << 8);
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
      words.push_back(word);
    }
    leaves.push_back({});
  } else if (value.isGenerator()) {
    generator = value.toGenerator();
    words.push_back(kIgnored);
    leaves.push_back({});
  } else if (value.isDevice()) {
    words.push_back(kIgnored);
    leaves.push_back({});
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "arguments of kind ", value.tagKind(),
                                " are not supported on the neuron device");
  }
}

void CallKey::finish() {
  TORCH_CHECK(parameters.size() < 32768, "one call may use at most 32767 tensors and numbers, got ",
              parameters.size());
  if (doubles_.empty()) return;
  // With no floating-point tensor about, the wide form loses nothing: an integer tensor may be
  // filled with a number beyond float32.
  const bool wide = saw_double_tensor_ || !saw_float_tensor_;
  words.push_back(kDouble | static_cast<uint64_t>(wide) << 8);
  if (wide) return;
  for (int16_t p : doubles_) {
    double number;
    std::memcpy(&number, &parameters[p].bits, sizeof(number));
    parameters[p].dtype = DType::kF32;
    parameters[p].bits = float_bits(number);
  }
}

}  // namespace tn::torch_glue
