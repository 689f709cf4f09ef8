"""C++ of the entry that repeated calls take: a function of the interpreter's own calling convention that looks for changes and runs.

    int dcir_enter(address of an Entry, of a table, of the call back, and what the entry's slots are to point to)

Between two calls of a small network its weights have pushed the interpreter's data out of the near caches, so every object that a call
touches costs time, and a call through ctypes touches many. The convention (``METH_FASTCALL``) and the interpreter's functions belong to
its stable interface; ``dcir/runtime/entry.py`` hands over their addresses, so a library needs no header of Python's.
"""

from __future__ import annotations

from dcir.codegen.cpp.template import templates

OTHER_MODES, CHANGED = 1 << 30, (1 << 30) + 1
"""What ``dcir_enter`` returns where it ran nothing: the thread's dispatch keys are others; something is not as it was noted."""

ENTRY = templates("driver/entry").entry(other_modes=OTHER_MODES, changed=CHANGED)
