"""The language: element types, loop programs, library nodes and the network SDFG; nothing else reads SDFG internals."""
