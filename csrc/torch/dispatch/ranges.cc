#include "torch/dispatch/ranges.h"

#include <ATen/native/DistributionTemplates.h>
#include <c10/util/Exception.h>

#include <map>
#include <optional>

namespace tn::torch_glue {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

double number(Arguments arguments, size_t i) { return arguments[i].toScalar().toDouble(); }

void uniform(Arguments a) {
  TORCH_CHECK(number(a, 1) <= number(a, 2),
              "uniform_ expects to return a [from, to) range, but found from=", number(a, 1),
              " > to=", number(a, 2));
}

void normal(Arguments a) {
  TORCH_CHECK(number(a, 2) >= 0.0, "normal expects std >= 0.0, but found std ", number(a, 2));
}

void bernoulli(Arguments a) {
  TORCH_CHECK(0 <= number(a, 1) && number(a, 1) <= 1,
              "bernoulli_ expects p to be in [0, 1], but got p=", number(a, 1));
}

void exponential(Arguments a) {
  TORCH_CHECK(number(a, 1) > 0.0,
              "exponential_ expects lambda > 0.0, but found lambda=", number(a, 1));
}

void geometric(Arguments a) {
  TORCH_CHECK(0 < number(a, 1) && number(a, 1) < 1,
              "geometric_ expects p to be in (0, 1), but got p=", number(a, 1));
}

void log_normal(Arguments a) {
  TORCH_CHECK(number(a, 2) > 0.0, "log_normal_ expects std > 0.0, but found std=", number(a, 2));
}

void cauchy(Arguments a) {
  TORCH_CHECK(number(a, 2) > 0.0, "cauchy_ expects sigma > 0.0, but found sigma=", number(a, 2));
}

// Draws nothing: PyTorch's template around it checks the bounds against each other and against
// the tensor's dtype, in whose range they would wrap.
template <typename RNG>
struct NoDraw {
  template <typename... Bounds>
  void operator()(at::TensorIteratorBase&, Bounds&&...) const {}
};

void check_range(const c10::IValue& self, int64_t from, std::optional<int64_t> to) {
  at::Tensor tensor = self.toTensor();
  at::native::templates::random_from_to_impl<NoDraw, at::Generator>(tensor, from, to, std::nullopt);
}

void random_from(Arguments a) { check_range(a[0], a[1].toInt(), a[2].toOptional<int64_t>()); }

void random_to(Arguments a) { check_range(a[0], 0, a[1].toInt()); }

}  // namespace

ArgumentCheck find_argument_check(const std::string& overload) {
  static const std::map<std::string, ArgumentCheck> checks = {
      {"aten::bernoulli_.float", bernoulli}, {"aten::cauchy_", cauchy},
      {"aten::exponential_", exponential},   {"aten::geometric_", geometric},
      {"aten::log_normal_", log_normal},     {"aten::normal_", normal},
      {"aten::random_.from", random_from},   {"aten::random_.to", random_to},
      {"aten::uniform_", uniform},
  };
  auto it = checks.find(overload);
  return it == checks.end() ? nullptr : it->second;
}

}  // namespace tn::torch_glue
