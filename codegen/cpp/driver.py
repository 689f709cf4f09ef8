"""The driver's text: C functions that run a network's kernels in order over a table of pointers.

    int dcir_run(void** table, int (*call_back)(int))
    int dcir_prepare(void** table)                    computes what depends on static inputs alone
    unsigned long long dcir_fingerprint(void** table) a digest of a few elements of every static input
    unsigned long long dcir_ticks[steps + 1]          of a profiled driver: nanoseconds of each step of the last call

``table[0]`` is the arena, ``table[1]`` the block of prepared values; inputs, constants and results follow. The
kernels of one stretch between calls into torch run in one OpenMP team; each kernel ends in a barrier. The return
value is 0, or 1 + the number of the operator that met an index outside its tensor, or -1 - the number of the call
into torch that failed.
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


def driver_text(
    calls: Sequence[Call], before: Sequence[Call] = (), static: Sequence[tuple[int, int]] = (), *, profile: bool = False
) -> str:
    """C++ of the driver (no header needed).

    Args:
        calls: the steps of a call.
        before: the steps that prepare what calls read.
        static: (slot, bytes) of every input that ``before`` reads.
        profile: whether the first thread reads the clock after every step, for ``dcir_ticks``; the last of them is the time in
            which teams open and close. Calls of a profiled driver must not overlap.
    """
    lines = _clock(len(calls)) if profile else []
    arity = {c.kernel: len(c.operands) for c in (*before, *calls) if c.kernel}
    for name, n in arity.items():
        lines.append(f'extern "C" void __program_{name}({", ".join(["void*"] * (n + 2))});')
    lines.append('extern "C" __attribute__((visibility("default"))) int dcir_run(void** t, int (*call_back)(int)) {')
    lines.append("  int status = 0;")
    if profile:
        lines.append(
            f"  for (int i = 0; i <= {len(calls)}; i++) dcir_ticks[i] = 0;\n  lap({len(calls)}); dcir_ticks[{len(calls)}] = 0;"
        )
    first = 0
    for step, call in enumerate(calls):
        if call.kernel is None:
            lines += _stretch(calls[first:step], first if profile else None, len(calls))
            first = step + 1
            lines.append(f"  if (call_back({call.number})) return {-1 - call.number};")
            lines += [f"  lap({step});"] * profile
    lines += _stretch(calls[first:], first if profile else None, len(calls))
    lines += ["  return 0;", "}"]
    lines.append('extern "C" __attribute__((visibility("default"))) int dcir_prepare(void** t) {')
    lines += ["  int status = 0;", *_stretch(before), "  return 0;", "}"]
    return "\n".join([*lines, *_fingerprint(static), ""])


# Words of a static input that its digest covers. A write that goes around the version counter (through Tensor.data) is
# found out by them, unless it leaves them all as they were.
_PROBES = 4


def _fingerprint(static: Sequence[tuple[int, int]]) -> list[str]:
    lines = ['extern "C" __attribute__((visibility("default"))) unsigned long long dcir_fingerprint(void** t) {']
    lines.append("  unsigned long long h = 0, w;")
    for slot, size in static:
        width = min(size, 8)
        places = sorted({(size - width) * i // (_PROBES - 1) // width * width for i in range(_PROBES)})
        for place in places:
            lines.append(f"  w = 0; __builtin_memcpy(&w, (char*)t[{slot}] + {place}ll, {width});")
            lines.append("  h = (h ^ w) * 0x9e3779b97f4a7c15ull; h ^= h >> 29;")
    return [*lines, "  return h;", "}"]


def _clock(steps: int) -> list[str]:
    """``lap(i)``: the time since the last lap counts for step i."""
    return [
        "struct Time { long seconds, nanoseconds; };",
        'extern "C" int clock_gettime(int, Time*);',
        'extern "C" int omp_get_thread_num();',
        f'extern "C" {{ __attribute__((visibility("default"))) unsigned long long dcir_ticks[{steps + 1}]; }}',
        "static unsigned long long last;",
        "static void lap(int step) {",
        "  if (omp_get_thread_num()) return;",
        "  Time t;",
        "  clock_gettime(1, &t);",  # CLOCK_MONOTONIC
        "  unsigned long long now = t.seconds * 1000000000ull + t.nanoseconds;",
        "  dcir_ticks[step] += now - last; last = now;",
        "}",
    ]


def _stretch(calls: Sequence[Call], first: int | None = None, steps: int = 0) -> list[str]:
    """One team's calls; with the number of the first of ``steps`` where laps are wanted."""
    if not calls:
        return []
    team = any(c.parallel for c in calls)
    lines = ["  {", "  int bad = 0;"]
    if team:
        lines.append("  #pragma omp parallel")
    lines.append("  {")
    if first is not None:
        lines.append(f"    lap({steps});")
    for i, c in enumerate(calls):
        operands = ", ".join(f"(char*)t[{p.slot}] + {p.offset}ll" for p in c.operands)
        lines.append(f"    __program_{c.kernel}(0, {operands}, &status);")
        if c.checked:
            # Every thread has passed the kernel's last barrier; the first operator to fail keeps its number.
            lines.append(f"    if (status && !bad) bad = {c.number + 1};" if not team else
                         f"    _Pragma(\"omp single\") {{ if (status && !bad) bad = {c.number + 1}; }}")  # fmt: skip
        if first is not None:
            lines.append(f"    lap({first + i});")
    lines.append("  }")
    if first is not None:
        lines.append(f"  lap({steps});")
    lines += ["  if (bad) return bad;", "  }"]
    return lines
