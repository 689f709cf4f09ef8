"""The driver's text: one C function that puts a network's kernels on a stream, in order, over a table of pointers.

    int dcir_run(void** table, int (*call_back)(int), void* stream, int* status)
    void dcir_bind(launch, copy, move, wait, functions)    once, before the first run: what starts kernels, and the kernels
    const char* dcir_kernels[], int dcir_kernel_count      names of the kernels, in the order of ``functions``
    int dcir_shared[], int dcir_arguments[]                dynamic shared memory of each, in bytes; how many pointers each is given
    int dcir_decides                                       whether a bool on the device decides what comes next
    int dcir_checked[], int dcir_checked_count             numbers of the operators that may report a bad index, each in its word of status

``table[0]`` is the arena, ``table[1]`` the block of prepared values; inputs, constants and results follow. The return value is 0; or
-1 - the number of the call into torch that failed; or the error of a launch times a million, plus 1 + the number of its operator. Nothing
here waits for the device, but where a bool on it decides what comes next.

A driver that measures its steps has ``unsigned long long dcir_ticks[dcir_steps + 2]``, as the one for CPUs: nanoseconds of each step of
the last call, of teams (there are none), and the calls so far. On a device these are asked of events that are recorded between steps:
``int (*dcir_mark)(event, stream)``, ``void** dcir_events``, set before the first run.

On the CPU (``DCIR_CUDA=twin``) the same text runs: what starts kernels is a function of the library then, and the clock the host's. In
place of a stream it takes what is to hear of launches in place of their kernels, ``int (*)(function, sizes, arguments)``, or nothing.
``dcir_twins`` are the functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dcir.codegen.backend import Kernel, Steps
from dcir.codegen.cuda.launch import Launch
from dcir.codegen.cuda.print_steps import FAILED, SYMBOL, step_lines
from dcir.codegen.steps import AnyStep, Branch, Call, Loop, calls_in
from dcir.errors import Unsupported

_EXPORT = '__attribute__((visibility("default")))'
_TYPES = """
typedef int (*Launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
typedef int (*Copy)(void*, unsigned long long, unsigned long long, void*);
typedef int (*Move)(unsigned long long, unsigned long long, unsigned long long, void*);
typedef int (*Wait)(void*);
"""
_BOUND = (
    "Launch dcir_launch;",
    "Copy dcir_copy;",
    "Move dcir_moves;",
    "Wait dcir_wait;",
    "void* const* dcir_functions;",
)

_DECISIONS = """
static int dcir_flag(const char* p, void* stream, bool* flag) {
  char c = 0;
  if (!dcir_copy) c = *(const volatile char*)p;
  else if (const int e = dcir_copy(&c, (unsigned long long)p, 1, stream)) return e;
  else if (const int e = dcir_wait(stream)) return e;
  *flag = c;
  return 0;
}
static int dcir_move(char* to, const char* from, long long n, void* stream) {
  if (dcir_moves) return dcir_moves((unsigned long long)to, (unsigned long long)from, n, stream);
  __builtin_memmove(to, from, n);
  return 0;
}
"""
_CLOCK = """
struct Time { long seconds, nanoseconds; };
extern "C" int clock_gettime(int, Time*);
static unsigned long long dcir_last;
static int dcir_lap(int step, void* stream) {
  if (dcir_mark) return dcir_mark(dcir_events[step + 1], stream);
  Time t;
  clock_gettime(1, &t);
  const unsigned long long now = t.seconds * 1000000000ull + t.nanoseconds;
  if (step >= 0) dcir_ticks[step] = now - dcir_last;
  dcir_last = now;
  return 0;
}
"""


def driver_text(steps: Steps, *, profile: bool = False) -> str:
    """C++ of the driver (no header needed); with ``profile`` one that measures its steps, whose calls must not overlap.

    Raises:
        Unsupported: streams of images, or sizes that move.
    """
    if steps.flows or steps.sizes[0] >= 0:
        raise Unsupported.collect([("a stream of images, or sizes that move, on a GPU", "")])
    every = [*calls_in(steps.before), *calls_in(steps.calls)]
    numbers = sorted({c.number for c in every if c.checked})
    checked = {number: word for word, number in enumerate(numbers)}
    lines = [_TYPES, *(f'extern "C" {bound}' for bound in _BOUND), _DECISIONS]
    for name, n in {c.kernel: len(c.operands) for c in every if c.kernel}.items():
        lines.append(f'extern "C" int {SYMBOL}{name}(void*, {"char*, " * n}int*);')
    row = ", ".join(map(str, numbers)) or "0"
    decides = int(any(map(_decides, (*steps.before, *steps.calls))))
    lines.append(_table(
        f"int dcir_decides = {decides}", f"int dcir_checked_count = {len(numbers)}", f"int dcir_checked[] = {{{row}}}"
    ))  # fmt: skip
    if profile:
        lines += _clock(len(steps.calls))
    lines.append(f'extern "C" {_EXPORT} int dcir_run(void** t, int (*call_back)(int), void* stream, int* status) {{')
    for step in steps.before:
        lines += _step(step, checked)
    if profile:
        lines += [f"  dcir_ticks[{len(steps.calls) + 1}]++;", *_lap(-1, 0)]
    for i, step in enumerate(steps.calls):
        lines += _step(step, checked)
        if profile:
            lines += _lap(i, step.number)
    return "\n".join([*lines, "  return 0;", "}"])


def _decides(step: AnyStep) -> bool:
    """Whether a bool on the device is waited for."""
    if isinstance(step, Loop):
        return step.trips is None or any(map(_decides, step.steps))
    return isinstance(step, Branch)


def _step(step: AnyStep, checked: Mapping[int, int]) -> list[str]:
    if isinstance(step, Call) and step.kernel is None:
        return [f"  if (call_back({step.number})) return {-1 - step.number};"]
    return step_lines(step, checked)


def _clock(steps: int) -> list[str]:
    """What a driver that measures so many steps has beside its run."""
    head = _table(
        f"int dcir_steps = {steps}",
        f"unsigned long long dcir_ticks[{steps + 2}]",
        "int (*dcir_mark)(void*, void*) = 0",
        "void** dcir_events = 0",
    )
    return [head, _CLOCK]


def _lap(step: int, number: int) -> list[str]:
    return [f"  if (const int e = dcir_lap({step}, stream)) return e * {FAILED} + {number + 1};"]


def stubs_text(kernels: Sequence[Kernel], launches: Mapping[str, Sequence[Launch]], *, twin: bool) -> str:
    """C++ of a function for each kernel of the network, which starts what it is made of; and the table of what it starts.

    Args:
        kernels: of the network.
        launches: by a kernel's name what it does on the device.
        twin: whether the device's functions are this library's own.
    """
    started = {launch.kernel: launch for k in kernels for launch in launches[k.name]}
    number = {name: i for i, name in enumerate(started)}
    shared = dict.fromkeys(started, 0)
    for rows in launches.values():
        for launch in rows:
            shared[launch.kernel] = max(shared[launch.kernel], launch.shared_bytes)
    lines = [_TYPES, 'extern "C" {', *_BOUND, "}"]
    names = ", ".join(f'"{name}"' for name in started) or '""'
    sizes = ", ".join(map(str, shared.values())) or "0"
    given = ", ".join(str(len(launch.arguments)) for launch in started.values()) or "0"
    lines.append(_table(
        f"int dcir_kernel_count = {len(started)}", f"const char* dcir_kernels[] = {{{names}}}", f"int dcir_shared[] = {{{sizes}}}",
        f"int dcir_arguments[] = {{{given}}}",
    ))  # fmt: skip
    lines += _bind(list(started), twin=twin)
    for k in kernels:
        ins = [f"char* a{i}" for i in range(len(k.ins))]
        outs = [f"char* o{i}" for i in range(len(k.outs))]
        parameters = ", ".join(["void* stream", *ins, *outs, "char* scratch", "int* status"])
        lines.append(f'extern "C" int {SYMBOL}{k.name}({parameters}) {{')
        for launch in launches[k.name]:
            lines += _start(launch, number[launch.kernel])
        lines += ["  return 0;", "}"]
    return "\n".join(lines)


def _table(*rows: str) -> str:
    """What the run time reads of a library."""
    return "\n".join(['extern "C" {', *(f"{_EXPORT} {row};" for row in rows), "}"])


def _start(launch: Launch, number: int) -> list[str]:
    pointers = ", ".join(f"(void*)&{a}" for a in launch.arguments)
    sizes = ", ".join(map(str, (*launch.grid, *launch.block, launch.shared_bytes)))
    return [
        "  {",
        f"  void* arguments[] = {{{pointers}}};",
        f"  if (const int e = dcir_launch(dcir_functions[{number}], {sizes}, stream, arguments, 0)) return e;",
        "  }",
    ]


def _bind(started: Sequence[str], *, twin: bool) -> list[str]:
    head = f'extern "C" {_EXPORT} void dcir_bind(Launch launch, Copy copy, Move move, Wait wait, void* const* functions) {{'
    if not twin:
        body = (
            "dcir_launch = launch; dcir_copy = copy; dcir_moves = move; dcir_wait = wait; dcir_functions = functions;"
        )
        return [head, f"  {body}", "}"]
    declared = [f'extern "C" int dcir_twin_{name}(const unsigned*, void**);' for name in started]
    table = ", ".join(f"(void*)dcir_twin_{name}" for name in started) or "0"
    return [
        *declared,
        _table(f"void* dcir_twins[] = {{{table}}}"),
        "static int start(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,"
        " void* hears, void** arguments, void**) {",
        "  const unsigned sizes[] = {gx, gy, gz, bx, by, bz, shared};",
        "  if (hears) return ((int (*)(void*, const unsigned*, void**))hears)(f, sizes, arguments);",
        "  return ((int (*)(const unsigned*, void**))f)(sizes, arguments);",
        "}",
        head,
        "  dcir_launch = start; dcir_functions = dcir_twins;",
        "}",
    ]
