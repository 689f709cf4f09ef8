"""The driver's text: one C function that runs a network's kernels in order over a table of pointers.

    int dcir_run(void** table, int (*call_back)(int))

``table[0]`` is the arena; inputs, constants and results follow. The kernels of one stretch between calls into torch run
in one OpenMP team; each kernel ends in a barrier. The return value is 0, or 1 + the number of the operator that met an
index outside its tensor, or -1 - the number of the call into torch that failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Where an operand lies: a slot of the table and a byte offset from what it points to."""

    slot: int
    offset: int


@dataclass(frozen=True)
class Call:
    """One step of the driver.

    Attributes:
        kernel: name of the kernel, or None for a call into torch.
        number: the operator's number, for errors and call backs.
        operands: inputs, then outputs, then scratch.
        parallel: whether more than one thread has work in it.
        checked: whether it may report a bad index.
    """

    kernel: str | None
    number: int
    operands: tuple[Place, ...]
    parallel: bool
    checked: bool


def driver_text(calls: Sequence[Call]) -> str:
    """C++ of the driver (no header needed)."""
    lines = []
    arity = {c.kernel: len(c.operands) for c in calls if c.kernel}
    for name, n in arity.items():
        lines.append(f'extern "C" void __program_{name}({", ".join(["void*"] * (n + 2))});')
    lines.append('extern "C" __attribute__((visibility("default"))) int dcir_run(void** t, int (*call_back)(int)) {')
    lines.append("  int status = 0;")
    stretch: list[Call] = []
    for call in calls:
        if call.kernel is None:
            lines += _stretch(stretch)
            stretch = []
            lines.append(f"  if (call_back({call.number})) return {-1 - call.number};")
        else:
            stretch.append(call)
    lines += _stretch(stretch)
    return "\n".join([*lines, "  return 0;", "}", ""])


def _stretch(calls: Sequence[Call]) -> list[str]:
    if not calls:
        return []
    team = any(c.parallel for c in calls)
    lines = ["  {", "  int bad = 0;"]
    if team:
        lines.append("  #pragma omp parallel")
    lines.append("  {")
    for c in calls:
        operands = ", ".join(f"(char*)t[{p.slot}] + {p.offset}ll" for p in c.operands)
        lines.append(f"    __program_{c.kernel}(0, {operands}, &status);")
        if c.checked:
            # Every thread has passed the kernel's last barrier; the first operator to fail keeps its number.
            lines.append(f"    if (status && !bad) bad = {c.number + 1};" if not team else
                         f"    _Pragma(\"omp single\") {{ if (status && !bad) bad = {c.number + 1}; }}")  # fmt: skip
    lines += ["  }", "  if (bad) return bad;", "  }"]
    return lines
