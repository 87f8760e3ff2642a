// Checks of number arguments that are operands.
//
// Operands stay out of the key (decision D4), so no plan has seen their values: what PyTorch
// refuses by value must be refused at every call.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace tn::torch_glue {

// Throws for arguments whose values PyTorch refuses, in CPU's words.
using ArgumentCheck = void (*)(c10::ArrayRef<c10::IValue> arguments);

// The check of an overload, or null.
ArgumentCheck find_argument_check(const std::string& overload);

}  // namespace tn::torch_glue
