"""C++ that packs a strided matrix into panels: contiguous rows by copies, contiguous columns by transposition."""

from __future__ import annotations

from dcir.codegen.cpp.template import templates

text_of = templates("pack")


def pack_vectors(name: str, width_stride: int, depth_stride: int) -> str:
    """A function template ``name<NV>(to, from, depth, valid)`` that fills a panel of NV vectors' width."""
    if width_stride == 1:
        text = text_of.vector_copy
    else:
        text = text_of.vector_transpose if depth_stride == 1 else text_of.vector_any
    return text({"sw": width_stride, "sd": depth_stride}, name=name)


def pack_rows(name: str, width_stride: int, depth_stride: int) -> str:
    """A function template ``name<MR>(to, from, depth)`` that fills a panel of MR rows."""
    if width_stride == 1:
        text = text_of.rows_copy
    else:
        text = text_of.rows_transpose if depth_stride == 1 else text_of.rows_any
    return text({"sw": width_stride, "sd": depth_stride}, name=name)
