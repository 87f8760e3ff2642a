// The end of the interpreter while other threads are still about.
#pragma once

namespace tn::torch_glue {

// Called by the thread that ends the interpreter, before it begins.
void interpreter_ends_here();

// For a thread about to take the interpreter's lock: once the interpreter is ending, CPython kills
// whichever thread asks for it by unwinding its stack, and a C++ frame on the way that must not
// throw takes the process with it. Such a thread waits here for the process to end instead.
void wait_if_interpreter_ends();

// Sends one more graph through each of autograd's device threads and waits for it.
//
// `backward()` returns while such a thread is still letting go of the graph before, and of Python
// objects that it holds, for which it needs the interpreter. A thread takes a graph only after it
// has let go of the one before; this one never touches Python. Call without the interpreter's lock.
void let_autograd_finish();

}  // namespace tn::torch_glue
