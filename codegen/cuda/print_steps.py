"""Steps as C++ of the thread that calls: every kernel is put on the stream, in order; loops and branches run here.

A loop of a known number of trips moves pointers and nothing else. What a bool on the device decides is waited for, which a capture of a
CUDA graph forbids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dcir.codegen.steps import AnyStep, Branch, Call, Carried, Loop, Numbers, Place, Window
from dcir.errors import Unsupported
from dcir.ir.sizes import Number

SYMBOL = "dcir_kernel_"


def step_lines(step: AnyStep, checked: Mapping[int, int]) -> list[str]:
    """The statements of a step; they see the table ``t``, ``stream`` and ``status``.

    Args:
        step: what to do.
        checked: by an operator's number, its word of ``status``.
    """
    if isinstance(step, Loop):
        return _loop(step, checked)
    if isinstance(step, Branch):
        return _branch(step, checked)
    word = checked.get(step.number, 0)
    arguments = ", ".join(["stream", *(_operand(o) for o in step.operands), f"status + {word}"])
    return [
        f"  if (const int e = {SYMBOL}{step.kernel}({arguments})) return {_error(step.number)};",
    ]


FAILED = 1_000_000
"""What a code of the driver's is multiplied with, behind which stands the operator's number."""


def _operand(o: Place | Numbers) -> str:
    if isinstance(o, Numbers):
        raise Unsupported.collect([("a kernel whose sizes are numbers in a table", "")])
    return _address(o)


def _loop(loop: Loop, checked: Mapping[int, int]) -> list[str]:
    trip, count = f"{loop.name}t", "1" if loop.trips is None else _number(loop.trips)
    lines = ["  {", *_pointers(loop.windows)]
    for c in loop.carried:
        # Of a known number of trips the last one writes where the value belongs.
        lines.append(f"  char *{c.read} = {_address(c.first)};")
        lines.append(f"  char *{c.written} = {count} % 2 ? {_address(c.last)} : {_address(c.other)};")
        lines.append(f"  char *{_next(c)} = {count} % 2 ? {_address(c.other)} : {_address(c.last)};")
    if loop.trips is not None:
        lines.append(f"  for (long long {trip} = 0; {trip} < {count}; {trip}++) {{")
    else:
        assert loop.flag is not None
        lines += ["  for (;;) {", *_all(loop.condition, checked)]
        lines += [*_flag(loop.flag, loop.number), "  if (!flag) break;"]
    lines += _all(loop.steps, checked)
    for c in loop.carried:
        lines.append(f"  {c.read} = {c.written}; {c.written} = {_next(c)}; {_next(c)} = {c.read};")
    lines += [f"  {w.name} += {_number(w.step)};" for w in loop.windows if w.step != 0]
    lines.append("  }")
    if loop.trips is None:
        for c in loop.carried:
            last = _address(c.last)
            moved = f"dcir_move({last}, {c.read}, {_number(c.nbytes)}, stream)"
            lines += [f"  if ({c.read} != {last})", f"    if (const int e = {moved}) return {_error(loop.number)};"]
    return [*lines, "  }"]


def _branch(branch: Branch, checked: Mapping[int, int]) -> list[str]:
    return [
        "  {",
        *_pointers(branch.windows),
        *_flag(branch.flag, branch.number),
        "  if (flag) {",
        *_all(branch.then, checked),
        "  } else {",
        *_all(branch.otherwise, checked),
        "  }",
        "  }",
    ]


def _flag(place: Place, number: int) -> list[str]:
    """``flag``, as it is on the device. Nothing in a capture can wait for that: then the run ends with the driver's error."""
    read = f"dcir_flag({_address(place)}, stream, &flag)"
    return ["  bool flag;", f"  if (const int e = {read}) return {_error(number)};"]


def _error(number: int) -> str:
    """What a run returns for an error ``e`` of the driver's at an operator."""
    return f"e * {FAILED} + {number + 1}"


def _pointers(windows: Sequence[Window]) -> list[str]:
    return [f"  char* {w.name} = {_address(w.first)};" for w in windows]


def _next(c: Carried) -> str:
    return f"{c.written}_"


def _all(steps: Sequence[AnyStep], checked: Mapping[int, int]) -> list[str]:
    lines = []
    for step in steps:
        if isinstance(step, Call) and step.kernel is None:
            raise Unsupported.collect([("a call into torch inside of a loop or branch", "")])
        lines += step_lines(step, checked)
    return lines


def _address(p: Place) -> str:
    if p.image or p.lane:
        raise Unsupported.collect([("a stream of images", "")])
    return f"{p.pointer or f'(char*)t[{p.slot}]'} + {_number(p.offset)}"


def _number(number: Number) -> str:
    if not isinstance(number, int):
        raise Unsupported.collect([("a size that moves", "")])
    return f"{number}ll"
