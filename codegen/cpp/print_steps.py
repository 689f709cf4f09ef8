"""Steps as C++ inside of one team: calls of kernels, loops and branches around them.

Every thread runs the loops, with pointers of its own; kernels share their work out and end in a barrier. A bool that decides is read by
all between two barriers, so that all go the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from dcir.codegen.steps import AnyStep, Branch, Call, Carried, Loop, Numbers, Place, Window
from dcir.codegen.symbolic import c_text, in_c
from dcir.ir.sizes import Number


def table_name(numbers: Numbers) -> str:
    """The name of an array of numbers."""
    return "_".join(["n", *(str(n).replace("-", "m") for n in numbers.values)])


def operands_text(c: Call) -> str:
    """The arguments of a call."""
    return ", ".join(
        f"(void*){table_name(p)}" if isinstance(p, Numbers) else _address(p) for p in c.operands
    )  # fmt: skip


def step_lines(step: AnyStep, team: bool) -> list[str]:
    """The statements of a step; they see the table ``t``, ``status``, and ``bad``, which keeps the number of the first operator to fail."""
    if isinstance(step, Loop):
        return _loop(step, team)
    if isinstance(step, Branch):
        return _branch(step, team)
    lines = [f"    __program_{step.kernel}(0, {operands_text(step)}, &status);"]
    if step.checked:
        # Every thread has passed the kernel's last barrier; the first operator to fail keeps its number.
        check = f"if (status && !bad) bad = {step.number + 1};"
        lines.append(f'    _Pragma("omp single") {{ {check} }}' if team else f"    {check}")
    return lines


def _loop(loop: Loop, team: bool) -> list[str]:
    trip, count = f"{loop.name}t", "1" if loop.trips is None else _number(loop.trips)
    lines = ["    {", *_pointers(loop.windows)]
    for c in loop.carried:
        # Of a known number of trips the last one writes where the value belongs.
        lines.append(f"    char *{c.read} = {_address(c.first)};")
        lines.append(f"    char *{c.written} = {count} % 2 ? {_address(c.last)} : {_address(c.other)};")
        lines.append(f"    char *{_next(c)} = {count} % 2 ? {_address(c.other)} : {_address(c.last)};")
    if loop.trips is not None:
        lines.append(f"    for (long long {trip} = 0; {trip} < {count}; {trip}++) {{")
    else:
        assert loop.flag is not None
        lines.append("    for (;;) {")
        lines += _all(loop.condition, team)
        lines.append(f"    if (bad || !*(const volatile char*)({_address(loop.flag)})) break;")
    lines += _all(loop.steps, team)
    for c in loop.carried:
        lines.append(f"    {c.read} = {c.written}; {c.written} = {_next(c)}; {_next(c)} = {c.read};")
    lines += [f"    {w.name} += {_number(w.step)};" for w in loop.windows if w.step != 0]
    lines.append("    }")
    if loop.trips is None:
        # The pragma's end is a barrier: nobody overwrites what another thread has not looked at yet.
        lines += ['    _Pragma("omp single")'] * team
        lines.append("    {")
        for c in loop.carried:
            lines.append(
                f"    if ({c.read} != {_address(c.last)}) __builtin_memmove({_address(c.last)}, {c.read}, {_number(c.nbytes)});"
            )
        lines.append("    }")
    return [*lines, "    }"]


def _branch(branch: Branch, team: bool) -> list[str]:
    return [
        "    {",
        *_pointers(branch.windows),
        f"    if (*(const volatile char*)({_address(branch.flag)})) {{",
        *_all(branch.then, team),
        "    } else {",
        *_all(branch.otherwise, team),
        "    }",
        *['    _Pragma("omp barrier")'] * team,  # a side may have nothing to do
        "    }",
    ]


def _pointers(windows: Sequence[Window]) -> list[str]:
    return [f"    char* {w.name} = {_address(w.first)};" for w in windows]


def _next(c: Carried) -> str:
    return f"{c.written}_"


def _all(steps: Sequence[AnyStep], team: bool) -> list[str]:
    return [line for step in steps for line in step_lines(step, team)]


def _address(p: Place) -> str:
    image, lane = (f" + {n}ll * {w}" if n else "" for n, w in ((p.image, "image"), (p.lane, "lane")))
    base = p.pointer or f"(char*)t[{p.slot}]"
    return f"{base} + {_number(p.offset)}{image}{lane}"


def _number(number: Number) -> str:
    return f"{number}ll" if isinstance(number, int) else f"({c_text(in_c(number))})"
