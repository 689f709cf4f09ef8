"""C++ of a whole call: a function of the interpreter's that takes the user's tensors and gives the result, or says that it cannot.

    PyObject* dcir_direct(tuple that begins with the address of a Direct, tensors, how many)

It compares all that the long way's guards look at (``dcir/runtime/direct.py`` notes it), then makes the result, fills the table and runs.
Of a small network's call half was the interpreter's way to ``dcir_enter`` and back, and Dynamo's guards: thousands of lines of code and
data that the weights have pushed out of the near caches. Here they are rows that lie behind each other.
"""

from __future__ import annotations

from dcir.codegen.cpp.template import templates

LARGEST_ARITY = 16
"""How many tensors a call may have."""

DIRECT = templates("driver/direct").direct(largest_arity=LARGEST_ARITY)
