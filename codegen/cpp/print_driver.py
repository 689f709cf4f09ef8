"""The driver's text: C functions that run a network's kernels in order over a table of pointers.

    int dcir_run(void** table, int (*call_back)(int))
    int dcir_part(void** table, int (*call_back)(int), int part)  of a driver that stops: all parts in order are a run
    int dcir_run_recorded(..., const Recorder*)       of one that can tell torch's profiler of its steps, and dcir_part_recorded: the same
                                                      with an event for each, see ``driver_marks.py``
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
into torch that failed. After a bad index nothing is written in place of an input.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dcir.codegen.cpp.digest import DIGEST
from dcir.codegen.cpp.direct import DIRECT
from dcir.codegen.cpp.driver_marks import Laps, Marks, Records
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

_VISIBLE = 'extern "C" __attribute__((visibility("default")))'


def driver_text(
    calls: Sequence[AnyStep],
    before: Sequence[AnyStep] = (),
    static: Sequence[tuple[int, int]] = (),
    streams: Sequence[Flow] = (),
    sizes: tuple[int, tuple[str, ...]] = (-1, ()),
    stops: Sequence[int] = (),
    *,
    profile: bool = False,
    recorded: bool = False,
    overwriting: Collection[int] = (),
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
        recorded: whether there is a second run that tells torch's profiler of its steps.
        overwriting: numbers of the operators that write in place of inputs.
    """
    marks: list[Marks] = [Laps(len(calls)) if profile else Marks(), *[Records()] * recorded]
    lines = [_O1]
    if streams or profile or recorded:
        lines += [f'extern "C" int {name};' for name in ("omp_get_thread_num()", "omp_get_num_threads()")]
        lines += [f'extern "C" int {name};' for name in ("omp_get_level()", "omp_get_ancestor_thread_num(int)")]
    lines += [line for m in marks for line in m.declarations()]
    every = [*calls_in(before), *calls_in(calls)]
    program = _Program(streams, sizes, overwriting)
    arity = {c.kernel: len(c.operands) for c in every if c.kernel}
    for name, n in arity.items():
        lines.append(f'extern "C" void __program_{name}({", ".join(["void*"] * (n + 2))});')
    for table in dict.fromkeys(o for c in every for o in c.operands if isinstance(o, Numbers)):
        lines.append(f"static const long long {table_name(table)}[] = {{{', '.join(map(str, table.values))}}};")
    for m in marks:
        for number in range(len(streams)):
            lines += _image(calls, number, m)
        if stops:
            lines += _in_parts(calls, [0, *stops, len(calls)], program, m)
        else:
            lines += _at_once(calls, program, m)
    lines.append(f"{_VISIBLE} int dcir_prepare(void** t) {{")
    lines += ["  int status = 0;", *_stretch(before, 0, _Program(), Marks()), "  return 0;", "}"]
    return "\n".join([*lines, *_fingerprint(static)])


@dataclass(frozen=True)
class _Program:
    """What the text of all stretches depends on; see ``driver_text``."""

    streams: Sequence[Flow] = ()
    sizes: tuple[int, tuple[str, ...]] = (-1, ())
    overwriting: Collection[int] = ()


def _at_once(calls: Sequence[AnyStep], program: _Program, marks: Marks) -> list[str]:
    """``dcir_run``."""
    return [
        f"{_VISIBLE} int dcir_run{marks.suffix}(void** t, int (*call_back)(int){marks.parameter}) {{",
        "  int status = 0;", *_sizes(program.sizes), *marks.opening(), *_steps(calls, 0, program, marks), "  return 0;", "}",
    ]  # fmt: skip


def _in_parts(calls: Sequence[AnyStep], ends: Sequence[int], program: _Program, marks: Marks) -> list[str]:
    """``dcir_part``, and a ``dcir_run`` that calls it."""
    lines = [
        f"{_VISIBLE} int dcir_part{marks.suffix}(void** t, int (*call_back)(int), int part{marks.parameter}) {{",
        "  int status = 0;", *_sizes(program.sizes), "  switch (part) {",
    ]  # fmt: skip
    for part, (begin, end) in enumerate(itertools.pairwise(ends)):
        lines += [f"  case {part}: {{", *_steps(calls[begin:end], begin, program, marks), "  return 0;", "  }"]
    return [
        *lines, "  }", "  return 0;", "}",
        f"{_VISIBLE} int dcir_run{marks.suffix}(void** t, int (*call_back)(int){marks.parameter}) {{",
        f"  for (int part = 0; part < {len(ends) - 1}; part++)",
        f"    if (int code = dcir_part{marks.suffix}(t, call_back, part{marks.argument})) return code;",
        "  return 0;", "}",
    ]  # fmt: skip


def _sizes(sizes: tuple[int, tuple[str, ...]]) -> list[str]:
    """The sizes that move, by name."""
    slot, names = sizes
    return [f"  const long long {name} = ((const long long*)t[{slot}])[{i}];" for i, name in enumerate(names)]


def _steps(calls: Sequence[AnyStep], number: int, program: _Program, marks: Marks) -> list[str]:
    """Stretches of generated code, and calls into torch between them; ``number`` is that of the first step."""
    lines, first = [], 0
    for i, call in enumerate(calls):
        if isinstance(call, Call) and call.kernel is None:
            lines += _stretch(calls[first:i], number + first, program, marks)
            lines += marks.before(number + i)
            lines.append(f"  const int failed{number + i} = call_back({call.number});")
            lines += marks.after(number + i)
            lines.append(f"  if (failed{number + i}) return {-1 - call.number};")
            first = i + 1
    return lines + _stretch(calls[first:], number + first, program, marks)


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


def _stretch(calls: Sequence[AnyStep], number: int, program: _Program, marks: Marks) -> list[str]:
    """One team's calls; ``number`` is that of the first.

    What comes from an overwriting step on is left out after a bad index; all threads have seen the same, see ``step_lines``.
    """
    if not calls:
        return []
    inner = sorted({c.stream for c in calls if isinstance(c, Call) and c.stream >= 0})
    team = any(c.parallel for c in calls_in(calls)) or bool(inner)
    lines = ["  {", "  int bad = 0;", *(f"  int next{s} = 0;" for s in inner)]
    if team:
        lines.append("  #pragma omp parallel")
    lines += ["  {", *marks.team()]
    begun: set[int] = set()
    untested, tests = False, 0
    for i, c in enumerate(calls):
        if untested and c.number in program.overwriting:
            lines.append("  if (!bad) {")
            untested, tests = False, tests + 1
        untested = untested or any(inner.checked for inner in calls_in([c]))
        if isinstance(c, Call) and c.stream >= 0:
            if c.stream not in begun:
                begun.add(c.stream)
                lines += _flow(c.stream, program.streams[c.stream], marks)
                last = max(k for k, other in enumerate(calls) if isinstance(other, Call) and other.stream == c.stream)
                lines += marks.after_stream(number + last)
            continue
        lines += [*marks.before(number + i), *step_lines(c, team), *marks.after(number + i)]
    return [*lines, *["  }"] * tests, "  }", *marks.team(), "  if (bad) return bad;", "  }"]


def _image(calls: Sequence[AnyStep], number: int, marks: Marks) -> list[str]:
    """The function that runs a stream's kernels for one image."""
    lines = [
        f"static void stream{number}{marks.suffix}(void** t, long long image, long long lane, int* status{marks.parameter}) {{"
    ]
    for step, c in enumerate(calls):
        if isinstance(c, Call) and c.stream == number:
            lines += marks.before(step)
            lines.append(f"  __program_{c.kernel}(0, {operands_text(c)}, status);")
            lines += marks.after(step)
    return [*lines, "}"]


def _flow(number: int, flow: Flow, marks: Marks) -> list[str]:
    """A stream: whole images for each thread as long as there is one for all of them, the rest by the team.

    A kernel's worksharing loops bind to the innermost team, here one of a single thread.
    """
    call, rest = f"stream{number}{marks.suffix}(t, image, ", f", &status{marks.argument});"
    return [
        "    {",
        f"    const int lanes = omp_get_num_threads() < {flow.lanes} ? omp_get_num_threads() : {flow.lanes};",
        f"    const int lane = omp_get_thread_num(), whole = {flow.images} - {flow.images} % lanes;",
        "    if (lane < lanes)",
        f"      for (int image; (image = __atomic_fetch_add(&next{number}, 1, __ATOMIC_RELAXED)) < whole;) {{",
        "        #pragma omp parallel num_threads(1)",
        f"        {call}lane{rest}",
        "      }",
        "    #pragma omp barrier",
        f"    for (int image = whole; image < {flow.images}; image++) {call}0{rest}",
        "    }",
    ]
