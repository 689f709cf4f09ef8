"""The language: element types, loop nests, library nodes and the network SDFG; nothing else reads SDFG internals."""

from dcir.ir.dace.settings import ignore_local_settings

ignore_local_settings()
