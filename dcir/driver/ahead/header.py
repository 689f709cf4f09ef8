"""The C header of a .dcir file: what the library's one function wants, and helpers to load weights and call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dcir.codegen.cpp.template import templates
from dcir.driver.ahead import moving_header
from dcir.ir.types import itemsize
from dcir.runtime.manifest import MAX_BYTES, Manifest, extent
from dcir.runtime.moving_manifest import Moving
from dcir.runtime.sized_manifest import Dimension

text_of = templates("driver/header")


_FOR_GPUS = """/* The library of this file puts kernels on a stream of a GPU, in memory of PyTorch's: dcir.load calls it, C cannot. */
"""


def header_text(
    manifest: Manifest, offsets: Mapping[str, int], moving: Moving | None = None, dimensions: Sequence[Dimension] = ()
) -> str:
    """The header of one network.

    Args:
        manifest: of the network, at its greatest sizes if they are chosen at run time.
        offsets: where weights begin in the file of weights.
        moving: what moves then.
        dimensions: those of the file.
    """
    if manifest.gpu is not None:
        return _FOR_GPUS
    numbers = _Numbers()
    weights = [
        (c.tensor, c.dtype, slot, c.shape, c.strides, offsets[c.tensor]) for c in manifest.constants for slot in c.slots
    ]
    inputs = [(x.name, x.dtype, x.slot, x.shape, x.strides, 0) for x in manifest.inputs]
    buffers = [(f"buffer {i}", b.dtype, b.slot, b.shape, b.strides, 0) for i, b in enumerate(manifest.buffers)]
    tables = [
        _tensors(name, rows, numbers) for name, rows in (("inputs", inputs), ("weights", weights), ("buffers", buffers))
    ]
    tables.append(_outputs(manifest, numbers))
    values = {
        "inputs": len(inputs),
        "buffers": len(buffers),
        "weights": len(weights),
        "outputs": len(manifest.outputs),
        "table_size": manifest.table_size,
        "arena_bytes": manifest.arena_bytes,
        "prepared_bytes": manifest.prepared_bytes,
        "calls_into_torch": len(manifest.calls_into_torch),
        "tables": numbers.text() + "".join(tables),
        "moving_tables": ""
        if moving is None
        else moving_header.tables(manifest, moving, [(_string(d.name), d.most or MAX_BYTES) for d in dimensions]),
        "members": "" if moving is None else moving_header.MEMBERS,
        "moving_functions": "" if moving is None else moving_header.functions(),
        "at_open": "" if moving is None else moving_header.AT_OPEN,
        "at_share": "" if moving is None else moving_header.AT_SHARE,
        "job_members": "" if moving is None else moving_header.JOB_MEMBERS,
        "at_job": "" if moving is None else moving_header.AT_JOB,
    }
    return text_of.header(values) + "\n"


class _Numbers:
    """All shapes and strides in one array, each list of numbers once."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.places: dict[tuple[int, ...], int] = {}

    def at(self, numbers: Sequence[int]) -> str:
        key = tuple(numbers)
        if key not in self.places:
            self.places[key] = len(self.values)
            self.values += key
        return f"dcir_numbers + {self.places[key]}"

    def text(self) -> str:
        return f"static const long long dcir_numbers[] = {{{', '.join(map(str, [*self.values, 0]))}}};\n"


Row = tuple[str, str, int, tuple[int, ...], tuple[int, ...], int]


def _tensors(name: str, rows: Sequence[Row], numbers: _Numbers) -> str:
    lines = [
        f"    {{{_string(label)}, {_string(dtype)}, {slot}, {extent(shape, strides) * itemsize(dtype)}ull, "
        f"{len(shape)}, {numbers.at(shape)}, {numbers.at(strides)}, {place}ull}},"
        for label, dtype, slot, shape, strides, place in rows
    ]
    # C has no empty arrays.
    return "\n".join([f"static const dcir_tensor dcir_{name}[] = {{", *lines, "    {0, 0, -1, 0, 0, 0, 0, 0}};", ""])


def _outputs(manifest: Manifest, numbers: _Numbers) -> str:
    lines = []
    for out in manifest.outputs:
        shape, strides = out.shape, out.strides
        if out.source != "literal" and shape is None:
            base = manifest.buffers[out.index] if out.source == "buffer" else manifest.inputs[out.index]
            shape, strides = base.shape, base.strides
        shape = shape or ()
        lines.append(
            f"    {{{_string(out.name)}, '{out.source[0]}', {out.index}, {out.offset}, {len(shape)}, "
            f"{numbers.at(shape)}, {numbers.at(strides)}}},"
        )
    return "\n".join(["static const dcir_output dcir_outputs[] = {", *lines, "    {0, 'l', 0, 0, 0, 0, 0}};", ""])


def _string(text: str) -> str:
    """A C string literal; everything but plain characters as octal escapes, so that no name can end the literal."""
    plain = (chr(b) if (chr(b).isalnum() and b < 128) or b in b" ._-/[]" else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(plain) + '"'
