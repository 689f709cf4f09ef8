"""Operator pages by family: each ATen overload with its lowering to loop nests and library nodes, and its samples."""
