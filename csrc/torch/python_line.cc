#include "torch/python_line.h"

#include <patchlevel.h>

// The interpreter's own view of its frames, of the versions whose frames we know. Python's public
// functions create frame objects, for which a thread needs the interpreter's lock, and dispatched
// operators run without it: taking it for every launch would make threads wait for each other. A
// thread that is inside a call may read its own frames without the lock: nobody else changes them,
// and they keep their code alive.
#define TN_KNOWS_FRAMES (PY_VERSION_HEX < 0x030E0000)
#if TN_KNOWS_FRAMES
#define Py_BUILD_CORE 1
#include <Python.h>
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#else
#include <Python.h>
#endif

#include <string_view>

#include "torch/ending.h"

namespace tn::torch_glue {
namespace {

bool is_ours(std::string_view path) {
  return path.find("/torch/") != path.npos || path.find("/torch_neuronx/") != path.npos;
}

#if TN_KNOWS_FRAMES
#if PY_VERSION_HEX < 0x030D0000
_PyInterpreterFrame* innermost_frame(PyThreadState* thread) {
  return thread->cframe ? thread->cframe->current_frame : nullptr;
}
PyCodeObject* code_of(_PyInterpreterFrame* frame) { return frame->f_code; }
#else
_PyInterpreterFrame* innermost_frame(PyThreadState* thread) { return thread->current_frame; }
PyCodeObject* code_of(_PyInterpreterFrame* frame) {
  return PyCode_Check(frame->f_executable) ? _PyFrame_GetCode(frame) : nullptr;
}
#endif

bool is_python(_PyInterpreterFrame* frame) {
#if PY_VERSION_HEX >= 0x030C0000
  if (frame->owner == FRAME_OWNED_BY_CSTACK) return false;  // where C called Python
#endif
  return !_PyFrame_IsIncomplete(frame);
}

// UTF-8 text of a string that nobody changes; "?" for the rare character beyond ASCII, which only
// the interpreter can encode.
std::string text_of(PyObject* string) {
  std::string text;
  const Py_ssize_t length = PyUnicode_GET_LENGTH(string);
  text.reserve(static_cast<size_t>(length));
  for (Py_ssize_t i = 0; i < length; ++i) {
    const Py_UCS4 c = PyUnicode_READ_CHAR(string, i);
    text += c < 128 ? static_cast<char>(c) : '?';
  }
  return text;
}

std::string_view ascii_of(PyObject* string) {
  if (!PyUnicode_IS_COMPACT_ASCII(string)) return {};
  return {reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(string)),
          static_cast<size_t>(PyUnicode_GET_LENGTH(string))};
}
#endif

}  // namespace

#if TN_KNOWS_FRAMES

std::string python_line() {
  if (!Py_IsInitialized()) return {};
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (!thread) return {};
  _PyInterpreterFrame* best = nullptr;
  for (auto* frame = innermost_frame(thread); frame; frame = frame->previous) {
    if (!is_python(frame)) continue;
    PyCodeObject* code = code_of(frame);
    if (!code || !PyUnicode_Check(code->co_filename)) continue;
    if (!best) best = frame;
    if (is_ours(ascii_of(code->co_filename))) continue;
    best = frame;
    break;
  }
  if (!best) return {};
  PyCodeObject* code = code_of(best);
  const int at = _PyInterpreterFrame_LASTI(best) * static_cast<int>(sizeof(_Py_CODEUNIT));
  return text_of(code->co_filename) + ":" + std::to_string(PyCode_Addr2Line(code, at));
}

#else

std::string python_line() {
  if (!Py_IsInitialized()) return {};
  wait_if_interpreter_ends();
  PyGILState_STATE gil = PyGILState_Ensure();
  std::string innermost;
  std::string text;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame && text.empty()) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (const char* file = PyUnicode_AsUTF8(code->co_filename)) {
      const std::string here =
          std::string(file) + ":" + std::to_string(PyFrame_GetLineNumber(frame));
      if (innermost.empty()) innermost = here;
      if (!is_ours(file)) text = here;
    } else {
      PyErr_Clear();
    }
    Py_DECREF(code);
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  PyGILState_Release(gil);
  return text.empty() ? innermost : text;
}

#endif

}  // namespace tn::torch_glue
