"""The text of one CUDA kernel: lines, loop variables from numbers, and from what it uses its parameters and its name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dcir.cache import key_of
from dcir.codegen.cuda.kernels.types import CUDA_TYPE
from dcir.codegen.cuda.launch import Launch
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Access, Gather

MOST_SHORT = 2**30
"""Addresses and numbers of points below this are computed in 32 bits; rounding up to blocks stays below 2^31."""


@dataclass(frozen=True)
class Places:
    """Where the operands of a nest are that are not the operator's operands of the same name.

    Attributes:
        scratch: of operands in scratch, C++ of the bytes from its start.
        names: of others, the operator's operand.
    """

    scratch: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def having(self, scratch: Mapping[str, str]) -> Places:
        """These, and others in scratch."""
        return Places({**self.scratch, **scratch}, self.names)


class Lines:
    """Lines of a kernel.

    Attributes:
        index: C++ type of loop variables and addresses.
    """

    def __init__(self, index: str) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.index = index

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def open(self, text: str) -> None:
        self.line(f"{text} {{" if text else "{")
        self.depth += 1

    def close(self, end: str = "}") -> None:
        self.depth -= 1
        self.line(end)

    def unrolled(self, name: str, times: int | str) -> None:
        self.line("#pragma unroll")
        self.open(f"for (int {name} = 0; {name} < {times}; {name}++)")

    def decompose(self, number: str, loops: Sequence[int], dims: Sequence[int], name: str = "i") -> None:
        """Loop variables, of a name and their numbers, from a row-major number over some loops."""
        rest = number
        for d in reversed(loops[1:]):
            self.line(f"const {self.index} {name}{d} = {rest} % {dims[d]}, q{name}{d} = {rest} / {dims[d]};")
            rest = f"q{name}{d}"
        if loops:
            self.line(f"const {self.index} {name}{loops[0]} = {rest};")


def operand_types(p: LoopNest) -> dict[str, str]:
    """The element types of a nest's operands."""
    return {**{f"a{k}": t for k, t in enumerate(p.inputs)}, **{f"o{k}": t for k, t in enumerate(p.outputs)}}


def finished(
    body: Sequence[str],
    types: Mapping[str, str],
    places: Places,
    grid: tuple[int, int, int],
    block: int,
    *,
    resident: int = 0,
) -> Launch:
    """A launch of a kernel with these lines.

    Args:
        body: the lines; an operand ``a<number>`` is only read.
        types: element types of the operands.
        places: where operands are.
        grid: blocks.
        block: threads of a block.
        resident: blocks that a multiprocessor is to hold at once, which bounds registers; 0: as it comes.
    """
    text = "\n".join(body)
    used = sorted(set(re.findall(r"\b(?:[ao]\d+|scratch|status)\b", text)), key=_rank)
    lines, parameters, names = [], [], []
    for name in used:
        if name in ("scratch", "status"):
            continue
        t = f"{'const ' if name[0] == 'a' else ''}{CUDA_TYPE[types[name]]}"
        if name in places.scratch:
            lines.append(f"  {t} *{name} = ({t} *)(scratch + {places.scratch[name]});")
        else:
            parameters.append(f"{t} *{name}")
            names.append(places.names.get(name, name))
    if lines or "scratch" in used:
        parameters.append("unsigned char *scratch")
        names.append("scratch")
    if "status" in used:
        parameters.append("int *status")
        names.append("status")
    bounds = f"{block}, {resident}" if resident else str(block)
    head = f"__launch_bounds__({bounds}) KERNEL({', '.join(parameters)}) {{"
    whole = "\n".join(['extern "C" __global__ void ' + head, *lines, text, "}", ""])
    name = f"k_{key_of(whole)[:20]}"
    return Launch(name, whole.replace("KERNEL", name, 1), grid, (block, 1, 1), 0, tuple(names))


def _rank(name: str) -> tuple[int, int]:
    return ("oas".index(name[0]), int(name[1:]) if name[1:].isdigit() else 0)


def reach(p: LoopNest) -> int:
    """The largest distance of an address from where its operand begins."""
    reach = 0
    for s in p.body:
        if isinstance(s, Access):
            far = sum(abs(st) * (n - 1) for st, n in zip(s.strides, p.dims, strict=True))
            if isinstance(s, Gather):
                far += sum(abs(st) * e for st, e in zip(s.steps, s.extents, strict=True))
            reach = max(reach, far)
    return reach
