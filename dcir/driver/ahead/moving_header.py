"""What the C header has for a program whose sizes are chosen at run time: its dimensions, and numbers as polynomials of their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from dcir.codegen.cpp.template import templates
from dcir.ir.sizes import Number, Polynomial
from dcir.ir.types import itemsize
from dcir.runtime.manifest import Manifest
from dcir.runtime.moving_manifest import Moving

text_of = templates("driver/moving_header")

MEMBERS = "\n    long long sizes[DCIR_SIZES];"
"""What a model has besides its table."""
AT_OPEN = """
    long long greatest[DCIR_DIMENSIONS];
    for (int i = 0; i < DCIR_DIMENSIONS; i++) greatest[i] = dcir_dimensions[i].most;
    if (good) dcir_resize(model, greatest);"""
"""What is done when a model is opened: its sizes are the greatest until others are set."""
AT_SHARE = "\n    model->table[DCIR_SIZES_SLOT] = model->sizes;"
"""What is done when a model with the same weights is made: its sizes are its own."""
JOB_MEMBERS = "\n    const long long *sizes; /* in the order of dcir_dimensions */"
"""What a submitted call has besides inputs and results."""
AT_JOB = "if (!(status = dcir_resize(model, job->sizes))) "
"""What is done before a submitted call is made; the number of a size outside its bounds is its status."""


def functions() -> str:
    """What calls at other sizes are made with."""
    return text_of.functions() + "\n\n"


def tables(manifest: Manifest, moving: Moving, ends: Sequence[tuple[str, int]]) -> str:
    """The tables of one program.

    Args:
        manifest: at its greatest sizes.
        moving: what moves of it.
        ends: of the dimensions of the file the names, as C strings, and the greatest sizes.
    """
    numbers = _Polynomials(moving.count)
    places = {
        "inputs": [numbers.layout(x.shape, x.strides) for x in moving.inputs],
        "buffers": [numbers.layout(b.shape, b.strides) for b in moving.buffers],
        "outputs": [_output(manifest, moving, i, numbers) for i in range(len(moving.outputs))],
    }
    elements = {
        "input": [itemsize(x.dtype) for x in manifest.inputs],
        "buffer": [itemsize(b.dtype) for b in manifest.buffers],
    }
    shapes = [x.shape for x in moving.inputs] + [b.shape for b in moving.buffers]
    shapes += [w.shape for w in moving.outputs if w is not None]
    lines = [*_dimensions(moving, ends), *numbers.text()]
    lines += [_array("int", f"dcir_moving_{name}", found) for name, found in places.items()]
    lines += [_array("size_t", f"dcir_{name}_elements", found) for name, found in elements.items()]
    return text_of.tables(
        dimensions=len(moving.axes), sizes=moving.count, slot=moving.slot, rank=max([1, *map(len, shapes)]), tables="\n".join(lines)
    ) + "\n"  # fmt: skip


def _output(manifest: Manifest, moving: Moving, number: int, numbers: _Polynomials) -> int:
    """Where the numbers of a result begin."""
    window, out = moving.outputs[number], manifest.outputs[number]
    if window is not None:
        return numbers.layout(window.shape, window.strides, window.offset)
    if out.source == "input":
        whole = moving.inputs[out.index]
        return numbers.layout(whole.shape, whole.strides)
    return numbers.layout((), ())


def _dimensions(moving: Moving, ends: Sequence[tuple[str, int]]) -> list[str]:
    """The dimensions that a call chooses, and how often each is divided."""
    rows: list[str] = []
    divisions: list[int] = []
    part = 0
    for axis in moving.axes:
        name, most = ends[axis.dimension]
        rows.append(
            f"    {{{name}, {axis.least}, {min(axis.most, most)}, {part}, {len(axis.steps)}, "
            f"dcir_divisions + {len(divisions)}}},"
        )
        divisions += [number for step in axis.steps for number in step]
        part += 1 + len(axis.steps)
    return [
        _array("long long", "dcir_divisions", divisions),
        "static const dcir_dimension dcir_dimensions[] = {",
        *rows,
        "};",
    ]


def _array(kind: str, name: str, values: Sequence[int]) -> str:
    # C has no empty arrays.
    return f"static const {kind} {name}[] = {{{', '.join(map(str, [*values, 0]))}}};"


class _Polynomials:
    """The distinct numbers of a program, and where lists of them stand."""

    def __init__(self, count: int) -> None:
        self._sizes = [f"s{i}" for i in range(count)]
        self._known: dict[Number, int] = {}
        self._listed: list[int] = []

    def layout(self, shape: Sequence[Number], strides: Sequence[Number], offset: Number = 0) -> int:
        """Where the numbers of a layout begin in the list: shape, strides, offset."""
        start = len(self._listed)
        self._listed += [self._known.setdefault(number, len(self._known)) for number in (*shape, *strides, offset)]
        return start

    def text(self) -> list[str]:
        """The terms of all numbers, the first term of each, and the lists."""
        rows: list[str] = []
        first: list[int] = []
        for number in self._known:
            first.append(len(rows))
            terms = number.terms if isinstance(number, Polynomial) else (((), number),)
            for monomial, coefficient in terms:
                powers = dict(monomial)
                rows.append(f"    {{{coefficient}ll, {{{', '.join(str(powers.get(s, 0)) for s in self._sizes)}}}}},")
        first.append(len(rows))
        return [
            "static const dcir_term dcir_terms[] = {",
            *rows,
            "};",
            _array("int", "dcir_first_terms", first),
            _array("int", "dcir_moving_numbers", self._listed),
        ]
