// The Python line that a thread runs.
#pragma once

#include <string>

namespace tn::torch_glue {

// The innermost Python line that this thread runs outside torch and this package (else the
// innermost of all), as "file.py:12"; empty without one. Takes no lock, and the interpreter's only
// from Python 3.14 on.
std::string python_line();

}  // namespace tn::torch_glue
