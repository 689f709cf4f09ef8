"""The language: element types, loop programs, library nodes and the network SDFG; nothing else reads SDFG internals."""

from dcir.ir.dace_settings import ignore_local_settings

ignore_local_settings()
