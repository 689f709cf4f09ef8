"""From a kernel plan to C++: a small SDFG, one parallel map around a raw tasklet per phase, through DaCe's generator."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from dcir.codegen.backend import Shared
from dcir.codegen.cpp.scalar_ops import CPP_TYPE
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.symbolic import Symbolic, sizes_from
from dcir.ir.dace.objects import DACE_TYPES

# Arrays of a kernel are bare pointers: their declared extent only has to be larger than any address.
_EXTENT = 1 << 40
_NAME = "dcirkernel"
_WORD = "dcirword"
_JOBS = "97531"  # the first digits of a number that no frame holds otherwise; the phase's number follows
_MANY_JOBS = 1 << 30
_BLANKS = re.compile(rf"{_WORD}[0-9]+_|\b{_JOBS}[0-9]+\b|{_NAME}")
HEADER = '#include "dace_shim.h"\n'


def argument_names(n_in: int, n_out: int) -> list[str]:
    """Parameters of a kernel's C function after the state handle, in order."""
    return [*(f"pa{i:04d}" for i in range(n_in)), *(f"po{i:04d}" for i in range(n_out)), "pscratch", "pstatus"]


def kernel_sdfg(plan: KernelPlan, ins: Sequence[str], outs: Sequence[str]) -> Any:
    """The SDFG of a kernel: one state per phase, each a map over the phase's jobs around one C++ tasklet."""
    import dace

    dace.Config.set("progress", value=False)
    dace.Config.set("compiler", "lineinfo", value="none")  # else DaCe walks Python's stack for every node it adds
    sdfg = dace.SDFG(_NAME)
    params = argument_names(len(ins), len(outs))
    operands = {f"a{i}": (params[i], DACE_TYPES[t]) for i, t in enumerate(ins)}
    results = {f"o{i}": (params[len(ins) + i], DACE_TYPES[t]) for i, t in enumerate(outs)}
    results["scratch"] = ("pscratch", dace.uint8)
    results["status"] = ("pstatus", dace.int32)
    for name, t in (*operands.values(), *results.values()):
        sdfg.add_array(name, [_EXTENT], t)
    if plan.globals:
        sdfg.append_global_code(plan.globals)
    last = None
    for number, phase in enumerate(plan.phases):
        state = sdfg.add_state(f"phase{number}", is_start_block=number == 0)
        if last is not None:
            sdfg.add_edge(last, state, dace.InterstateEdge())
        last = state
        code = f"const long long j = job;\n{phase.code}"
        used_in = {c: v for c, v in operands.items() if re.search(rf"\b{c}\b", code)}
        used_out = {c: v for c, v in results.items() if re.search(rf"\b{c}\b", code)}
        entry, leave = state.add_map(
            f"jobs{number}", {"job": f"0:{phase.jobs}"}, schedule=dace.ScheduleType.CPU_Multicore
        )  # fmt: skip
        tasklet = state.add_tasklet(
            f"phase{number}", {c: dace.pointer(t) for c, (_, t) in used_in.items()},
            {c: dace.pointer(t) for c, (_, t) in used_out.items()}, code, language=dace.Language.CPP,
        )  # fmt: skip
        if not used_in:
            state.add_nedge(entry, tasklet, dace.Memlet())
        for c, (name, _) in used_in.items():
            state.add_memlet_path(
                state.add_read(name), entry, tasklet, dst_conn=c, memlet=dace.Memlet(data=name, subset=f"0:{_EXTENT}")
            )
        for c, (name, _) in used_out.items():
            state.add_memlet_path(
                tasklet, leave, state.add_write(name), src_conn=c, memlet=dace.Memlet(data=name, subset=f"0:{_EXTENT}")
            )
    return sdfg


def kernel_text(plan: KernelPlan, ins: Sequence[str], outs: Sequence[str], name: str, shared: Shared = ()) -> str:
    """C++ of a kernel whose entry is ``__program_<name>(void*, arguments…)``: `HEADER` and `kernel_body`."""
    return HEADER + kernel_body(plan, ins, outs, name, shared)


def kernel_body(plan: KernelPlan, ins: Sequence[str], outs: Sequence[str], name: str, shared: Shared = ()) -> str:
    """What a kernel says below `HEADER`; several may stand in one file, each in a namespace of its own.

    The maps become worksharing loops of the team that the network's driver opens once per call, so a kernel costs a
    barrier and not a parallel region. DaCe sees words in place of the code and of the numbers of jobs, and is asked
    once for all kernels that differ in nothing else; what it needs for one is a hundred times the rest.

    No two parameters lie in the same memory, says DaCe's frame to the compiler. So a ``shared`` operand is reached by the parameter of
    the input that it lies with; its own is not looked at.
    """
    blank, words = _blank(plan, argument_names(len(ins), len(outs))[len(ins) - 1])
    words[_NAME] = name
    # One walk over the frame: what is put in is not looked at again.
    return _BLANKS.sub(lambda found: words[found[0]], _frame(blank, tuple(ins), tuple(outs), shared))


def _blank(plan: KernelPlan, table: str) -> tuple[KernelPlan, dict[str, str]]:
    """A plan with a word in place of everything that DaCe hands through, and what the words stand for.

    ``table`` is the last input, where the sizes are if the plan has some.
    """
    words = {f"{_WORD}{len(plan.phases)}_": plan.globals}
    phases = []
    for number, phase in enumerate(plan.phases):
        words[f"{_WORD}{number}_"] = phase.code
        used = sorted(set(re.findall(r"\b(?:[ao][0-9]+|scratch|status)\b", phase.code)))
        jobs = phase.jobs
        if isinstance(jobs, Symbolic) or 0 <= jobs < _MANY_JOBS:
            words[jobs_word := f"{_JOBS}{number}"] = sizes_from(jobs, plan.sizes, table)
            jobs = int(jobs_word)
        phases.append(Phase(jobs, f"{_WORD}{number}_ // {' '.join(used)}"))
    return KernelPlan("", f"{_WORD}{len(phases)}_" * bool(plan.globals), tuple(phases)), words


@functools.lru_cache(maxsize=1024)
def _frame(plan: KernelPlan, ins: tuple[str, ...], outs: tuple[str, ...], shared: Shared) -> str:
    """DaCe's text for a plan, without what a kernel of ours does not need."""
    from dace.codegen import codegen

    frame = codegen.generate_code(kernel_sdfg(plan, ins, outs), validate=False)[0].clean_code
    text = re.sub(r'#include\s+[<"](dace/dace\.h|\.\./\.\./include/hash\.h)[>"]', "", frame)
    text = text.replace("#pragma omp parallel for", "#pragma omp for")
    text = re.sub(r"DACE_EXPORTED (?:\w+ \*?|int )__dace_(?:init|exit)_\w+\([^)]*\)\s*;", "", text)
    # The entry does nothing but call the function with the code, which takes its name and is compiled once, not twice.
    text = _drop_functions(text, ("__dace_init_", "__dace_exit_", f"__program_{_NAME}("))
    text = text.replace(f"void __program_{_NAME}_internal(", f'extern "C" void __program_{_NAME}(')
    head, end, code = text.rpartition("pstatus)")
    for operand, lies_with in shared:
        own, other = (f"p{name[0]}{int(name[1:]):04d}" for name in (operand, lies_with))
        code = re.sub(rf"\b{own}\b", other, code)
    return re.sub(rf"({_WORD}[0-9]+_) //.*", r"\1", re.sub(r"\n\s*\n+", "\n", head + end + code))


def _drop_functions(text: str, starts: Sequence[str]) -> str:
    """Remove the set-up and tear-down functions: kernels keep no state."""
    for start in starts:
        while (at := text.find(start)) >= 0:
            begin = text.rfind("\n", 0, text.rfind("DACE_EXPORTED", 0, at)) + 1
            depth, i = 0, text.index("{", at)
            while True:
                depth += {"{": 1, "}": -1}.get(text[i], 0)
                i += 1
                if depth == 0:
                    break
            text = text[:begin] + text[i:]
    return text


def c_type(dtype: str) -> str:
    """C++ type of a stored element."""
    return CPP_TYPE[dtype]
