"""The driver's text: C functions that run a network's kernels in order over a table of pointers.

    int dcir_run(void** table, int (*call_back)(int))
    int dcir_part(void** table, int (*call_back)(int), int part)  of a driver that stops: all parts in order are a run
    int dcir_prepare(void** table)                    computes what depends on static inputs alone
    unsigned long long dcir_fingerprint(void** table) a digest of a few elements of every static input
    unsigned long long dcir_ticks[steps + 2]          of a profiled driver: nanoseconds of each step of the last call, of its
                                                      teams, and how many calls there were

and of what lies beside it in every library, whatever the program:

    void dcir_digest(...)                             see ``digest.py``
    int dcir_watch(...), dcir_note(...)               see ``watch.py``
    PyObject* dcir_enter(...)                         see ``entry.py``
    PyObject* dcir_direct(...)                        see ``direct.py``

``table[0]`` is the arena, ``table[1]`` the block of prepared values; inputs, constants and results follow. The
kernels of one stretch between calls into torch run in one OpenMP team; each kernel ends in a barrier. The return
value is 0, or 1 + the number of the operator that met an index outside its tensor, or -1 - the number of the call
into torch that failed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dcir.codegen.cpp.digest import DIGEST
from dcir.codegen.cpp.direct import DIRECT
from dcir.codegen.cpp.entry import ENTRY
from dcir.codegen.cpp.print_steps import operands_text, step_lines, table_name
from dcir.codegen.cpp.watch import WATCH
from dcir.codegen.steps import AnyStep, Call, Flow, Numbers, calls_in

_O1 = '#pragma GCC optimize ("O1")'  # they do nothing but call
BESIDE = "\n".join(
    [
        _O1,
        'extern "C" int dcir_run(void** table, int (*call_back)(int));',
        'extern "C" unsigned long long dcir_fingerprint(void** table);',
        *(DIGEST, WATCH, ENTRY, DIRECT),
    ]
)
"""A unit of its own: the same for all programs, it is compiled once, which takes five times as long as a small driver."""


def driver_text(
    calls: Sequence[AnyStep],
    before: Sequence[AnyStep] = (),
    static: Sequence[tuple[int, int]] = (),
    streams: Sequence[Flow] = (),
    sizes: tuple[int, tuple[str, ...]] = (-1, ()),
    stops: Sequence[int] = (),
    *,
    profile: bool = False,
) -> str:
    """C++ of the driver (no header needed).

    Args:
        calls: the steps of a call.
        before: the steps that prepare what calls read.
        static: (slot, bytes) of every input that ``before`` reads.
        streams: what calls refer to.
        sizes: slot of the values of the sizes that move, and their names.
        stops: numbers of the steps that each part but the first begins with; none lies inside a stream.
        profile: whether the first thread reads the clock after every step, for ``dcir_ticks``; behind the steps' times is the time
            in which teams open and close. Calls of a profiled driver must not overlap.
    """
    lines = [_O1]
    lines += _clock(len(calls)) if profile else []
    every = [*calls_in(before), *calls_in(calls)]
    arity = {c.kernel: len(c.operands) for c in every if c.kernel}
    for name, n in arity.items():
        lines.append(f'extern "C" void __program_{name}({", ".join(["void*"] * (n + 2))});')
    for table in dict.fromkeys(o for c in every for o in c.operands if isinstance(o, Numbers)):
        lines.append(f"static const long long {table_name(table)}[] = {{{', '.join(map(str, table.values))}}};")
    for number in range(len(streams)):
        lines += _image(calls, number, profile)
    lines += ['extern "C" int omp_get_num_threads();'] * bool(streams)
    lines += ['extern "C" int omp_get_thread_num();'] * bool(streams and not profile)
    if stops:
        lines += _in_parts(calls, [0, *stops, len(calls)], streams, sizes)
    else:
        lines += _at_once(calls, streams, sizes, profile=profile)
    lines.append('extern "C" __attribute__((visibility("default"))) int dcir_prepare(void** t) {')
    lines += ["  int status = 0;", *_stretch(before), "  return 0;", "}"]
    return "\n".join([*lines, *_fingerprint(static)])


def _at_once(
    calls: Sequence[AnyStep], streams: Sequence[Flow], sizes: tuple[int, tuple[str, ...]], *, profile: bool
) -> list[str]:
    """``dcir_run``."""
    lines = ['extern "C" __attribute__((visibility("default"))) int dcir_run(void** t, int (*call_back)(int)) {']
    lines.append("  int status = 0;")
    lines += _sizes(sizes)
    if profile:
        lines.append(
            f"  for (int i = 0; i <= {len(calls)}; i++) dcir_ticks[i] = 0;\n  lap({len(calls)}); dcir_ticks[{len(calls)}] = 0;"
            f" dcir_ticks[{len(calls) + 1}]++;"
        )
    first = 0
    for step, call in enumerate(calls):
        if isinstance(call, Call) and call.kernel is None:
            lines += _stretch(calls[first:step], first if profile else None, len(calls), streams)
            first = step + 1
            lines.append(f"  if (call_back({call.number})) return {-1 - call.number};")
            lines += [f"  lap({step});"] * profile
    lines += _stretch(calls[first:], first if profile else None, len(calls), streams)
    return [*lines, "  return 0;", "}"]


def _in_parts(
    calls: Sequence[AnyStep], ends: Sequence[int], streams: Sequence[Flow], sizes: tuple[int, tuple[str, ...]]
) -> list[str]:
    """``dcir_part``, and a ``dcir_run`` that calls it."""
    lines = [
        'extern "C" __attribute__((visibility("default"))) int dcir_part(void** t, int (*call_back)(int), int part) {',
        "  int status = 0;",
        *_sizes(sizes),
        "  switch (part) {",
    ]
    for part, (begin, end) in enumerate(itertools.pairwise(ends)):
        lines += [f"  case {part}: {{", *_steps(calls[begin:end], streams), "  return 0;", "  }"]
    return [
        *lines, "  }", "  return 0;", "}",
        'extern "C" __attribute__((visibility("default"))) int dcir_run(void** t, int (*call_back)(int)) {',
        f"  for (int part = 0; part < {len(ends) - 1}; part++)",
        "    if (int code = dcir_part(t, call_back, part)) return code;",
        "  return 0;", "}",
    ]  # fmt: skip


def _sizes(sizes: tuple[int, tuple[str, ...]]) -> list[str]:
    """The sizes that move, by name."""
    slot, names = sizes
    return [f"  const long long {name} = ((const long long*)t[{slot}])[{i}];" for i, name in enumerate(names)]


def _steps(calls: Sequence[AnyStep], streams: Sequence[Flow]) -> list[str]:
    """Stretches of generated code, and calls into torch between them."""
    lines, first = [], 0
    for step, call in enumerate(calls):
        if isinstance(call, Call) and call.kernel is None:
            lines += [
                *_stretch(calls[first:step], streams=streams),
                f"  if (call_back({call.number})) return {-1 - call.number};",
            ]
            first = step + 1
    return lines + _stretch(calls[first:], streams=streams)


# Words of a static input that are compared in every call: a last guard against writes through bare addresses, which nobody notes.
_PROBES = 4


def _fingerprint(static: Sequence[tuple[int, int]]) -> list[str]:
    """A loop over a table: as statements, the probes of a large network took the compiler longer than all its calls."""
    rows = []
    for slot, size in static:
        width = min(size, 8)
        rows += [
            (slot, width, at)
            for at in sorted({(size - width) * i // (_PROBES - 1) // width * width for i in range(_PROBES)})
        ]
    lines = ['extern "C" __attribute__((visibility("default"))) unsigned long long dcir_fingerprint(void** t) {']
    lines.append("  unsigned long long h = 0, w;")
    if rows:
        lines.append("  static const struct { int slot, width; long long at; } probes[] = {")
        lines += [f"{{{slot},{width},{at}}}," for slot, width, at in rows]
        lines += [
            "  };",
            "  for (auto& p : probes) {",
            "    const char* from = (const char*)t[p.slot] + p.at;",
            "    w = 0;",
            "    if (p.width == 8) __builtin_memcpy(&w, from, 8);",
            "    else __builtin_memcpy(&w, from, p.width);",
            "    h = (h ^ w) * 0x9e3779b97f4a7c15ull;",
            "    h ^= h >> 29;",
            "  }",
        ]
    return [*lines, "  return h;", "}"]


def _clock(steps: int) -> list[str]:
    """``lap(i)``: the time since the last lap counts for step i."""
    return [
        "struct Time { long seconds, nanoseconds; };",
        'extern "C" int clock_gettime(int, Time*);',
        'extern "C" { int omp_get_thread_num(); int omp_get_level(); int omp_get_ancestor_thread_num(int); }',
        f'extern "C" {{ __attribute__((visibility("default"))) unsigned long long dcir_ticks[{steps + 2}]; }}',
        "static unsigned long long last;",
        "static void lap(int step) {",
        "  if (omp_get_level() > 1 ? omp_get_ancestor_thread_num(1) : omp_get_thread_num()) return;",
        "  Time t;",
        "  clock_gettime(1, &t);",  # CLOCK_MONOTONIC
        "  unsigned long long now = t.seconds * 1000000000ull + t.nanoseconds;",
        "  dcir_ticks[step] += now - last; last = now;",
        "}",
    ]


def _stretch(
    calls: Sequence[AnyStep], first: int | None = None, steps: int = 0, streams: Sequence[Flow] = ()
) -> list[str]:
    """One team's calls; with the number of the first of ``steps`` where laps are wanted."""
    if not calls:
        return []
    inner = sorted({c.stream for c in calls if isinstance(c, Call) and c.stream >= 0})
    team = any(c.parallel for c in calls_in(calls)) or bool(inner)
    lines = ["  {", "  int bad = 0;", *(f"  int next{s} = 0;" for s in inner)]
    if team:
        lines.append("  #pragma omp parallel")
    lines.append("  {")
    if first is not None:
        lines.append(f"    lap({steps});")
    begun: set[int] = set()
    for i, c in enumerate(calls):
        if isinstance(c, Call) and c.stream >= 0:
            if c.stream not in begun:
                begun.add(c.stream)
                lines += _flow(c.stream, streams[c.stream])
                last = max(k for k, other in enumerate(calls) if isinstance(other, Call) and other.stream == c.stream)
                lines += [f"    lap({first + last});"] if first is not None else []
            continue
        lines += step_lines(c, team)
        if first is not None:
            lines.append(f"    lap({first + i});")
    lines.append("  }")
    if first is not None:
        lines.append(f"  lap({steps});")
    lines += ["  if (bad) return bad;", "  }"]
    return lines


def _image(calls: Sequence[AnyStep], number: int, profile: bool) -> list[str]:
    """The function that runs a stream's kernels for one image."""
    lines = [f"static void stream{number}(void** t, long long image, long long lane, int* status) {{"]
    for step, c in enumerate(calls):
        if isinstance(c, Call) and c.stream == number:
            lines.append(f"  __program_{c.kernel}(0, {operands_text(c)}, status);")
            lines += [f"  lap({step});"] * profile
    return [*lines, "}"]


def _flow(number: int, flow: Flow) -> list[str]:
    """A stream: whole images for each thread as long as there is one for all of them, the rest by the team.

    A kernel's worksharing loops bind to the innermost team, here one of a single thread.
    """
    call = f"stream{number}(t, image, "
    return [
        "    {",
        f"    const int lanes = omp_get_num_threads() < {flow.lanes} ? omp_get_num_threads() : {flow.lanes};",
        f"    const int lane = omp_get_thread_num(), whole = {flow.images} - {flow.images} % lanes;",
        "    if (lane < lanes)",
        f"      for (int image; (image = __atomic_fetch_add(&next{number}, 1, __ATOMIC_RELAXED)) < whole;) {{",
        "        #pragma omp parallel num_threads(1)",
        f"        {call}lane, &status);",
        "      }",
        "    #pragma omp barrier",
        f"    for (int image = whole; image < {flow.images}; image++) {call}0, &status);",
        "    }",
    ]
