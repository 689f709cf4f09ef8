"""The driver's text: one C function that puts a network's kernels on a stream, in order, over a table of pointers.

    int dcir_run(void** table, int (*call_back)(int), void* stream, int* status)
    void dcir_bind(launch, copy, move, wait, functions)    once, before the first run: what starts kernels, and the kernels
    const char* dcir_kernels[], int dcir_kernel_count      names of the kernels, in the order of ``functions``
    int dcir_shared[]                                      dynamic shared memory of each, in bytes
    int dcir_checked[], int dcir_checked_count             numbers of the operators that may report a bad index, each in its word of status

``table[0]`` is the arena, ``table[1]`` the block of prepared values; inputs, constants and results follow. The return value is 0; or
-1 - the number of the call into torch that failed; or the error of a launch times a million, plus 1 + the number of its operator. Nothing
here waits for the device, but where a bool on it decides what comes next.

On the CPU (``DCIR_CUDA=twin``) the same text runs: what starts kernels is a function of the library then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dcir.codegen.backend import Kernel, Steps
from dcir.codegen.cuda.launch import Launch
from dcir.codegen.cuda.print_steps import SYMBOL, step_lines
from dcir.codegen.steps import Call, calls_in
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
static bool dcir_flag(const char* p, void* stream) {
  if (!dcir_copy) return *(const volatile char*)p;
  char c = 0;
  dcir_copy(&c, (unsigned long long)p, 1, stream);
  dcir_wait(stream);
  return c;
}
static void dcir_move(char* to, const char* from, long long n, void* stream) {
  if (dcir_moves) dcir_moves((unsigned long long)to, (unsigned long long)from, n, stream);
  else __builtin_memmove(to, from, n);
}
"""


def driver_text(steps: Steps) -> str:
    """C++ of the driver (no header needed).

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
    lines.append(_table(f"int dcir_checked_count = {len(numbers)}", f"int dcir_checked[] = {{{row}}}"))
    lines.append(f'extern "C" {_EXPORT} int dcir_run(void** t, int (*call_back)(int), void* stream, int* status) {{')
    for step in (*steps.before, *steps.calls):
        if isinstance(step, Call) and step.kernel is None:
            lines.append(f"  if (call_back({step.number})) return {-1 - step.number};")
        else:
            lines += step_lines(step, checked)
    return "\n".join([*lines, "  return 0;", "}"])


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
    lines.append(_table(
        f"int dcir_kernel_count = {len(started)}", f"const char* dcir_kernels[] = {{{names}}}", f"int dcir_shared[] = {{{sizes}}}",
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
        f"static void* const twins[] = {{{table}}};",
        "static int start(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void*,"
        " void** arguments, void**) {",
        "  const unsigned sizes[] = {gx, gy, gz, bx, by, bz, shared};",
        "  return ((int (*)(const unsigned*, void**))f)(sizes, arguments);",
        "}",
        head,
        "  dcir_launch = start; dcir_functions = twins;",
        "}",
    ]
