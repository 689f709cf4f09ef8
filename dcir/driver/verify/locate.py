"""Where numbers change: the import, the first wrong pass, the wrong kernel, or the first pass whose whole code is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dcir.codegen.compile import compile_network
from dcir.codegen.invocations import invocations
from dcir.driver.assemble import assemble
from dcir.driver.targets.base import DriverTarget
from dcir.driver.targets.host import host_target
from dcir.driver.verify.check import Array, distance, index_bounds
from dcir.driver.verify.slices import Slice
from dcir.frontends.torch.importer import Imported, import_graph
from dcir.ir.dace.nodes import Op
from dcir.ir.interpret import interpret
from dcir.ir.network import Network, Operand, Result
from dcir.ir.operator import Operator
from dcir.ir.types import TYPES, bf16_to_f32, to_numpy
from dcir.ops.torch_types import FROM_NAME, TORCH_TYPES
from dcir.transforms.base import Pass
from dcir.transforms.runner import run_passes

IMPORT, PASS, KERNEL, CODE = "import", "pass", "kernel", "code"


@dataclass(frozen=True)
class Culprit:
    """What changes numbers.

    Attributes:
        kind: ``IMPORT`` (the network is not what PyTorch computes), ``PASS`` (the network is another after it), ``KERNEL``
            (generated code computes something else than its operator's reference) or ``CODE`` (every kernel is right alone,
            and wrong is how they run together since that pass; without a pass, already in the network as imported).
        passes: those that were run, the culprit last if it is a pass.
        kernel: of a wrong kernel, what it is.
        where: place in the user's model, of a wrong kernel.
        error, tolerance: of the worst result.
        result: its number among the slice's results (of a kernel: among its own).
    """

    kind: str
    passes: tuple[Pass, ...]
    error: float
    tolerance: float
    result: int = 0
    kernel: str = ""
    where: str = ""

    @property
    def culprit(self) -> str:
        """In words."""
        name = self.passes[-1].name if self.passes else ""
        return {
            IMPORT: "the import of the graph",
            PASS: f"pass {name}",
            KERNEL: f"kernel {self.kernel}",
            CODE: f"the code that runs the kernels, since pass {name}" if name else "the code that runs the kernels",
        }[self.kind]

    def alike(self, other: Culprit | None) -> bool:
        """Whether another finding is of the same defect, as far as can be seen."""
        if other is None or other.kind != self.kind:
            return False
        if self.kind == KERNEL:
            return self.kernel.split()[0] == other.kernel.split()[0]
        return self.kind == IMPORT or [p.name for p in self.passes[-1:]] == [p.name for p in other.passes[-1:]]


class _Stop(Exception):
    pass


def locate(
    part: Slice,
    values: Mapping[str, Tensor],
    passes: Sequence[Pass],
    *,
    threads: int,
    seed: int = 0,
    kinds: Sequence[str] = (IMPORT, PASS, KERNEL, CODE),
) -> Culprit | None:
    """The first step that changes the numbers of a graph, or None.

    A result may differ by a small part of its largest magnitude, or a few times what the last bits of the inputs decide
    (``check.distance``).

    Args:
        part, values: the graph and its inputs.
        passes: the pipeline.
        threads: that the code is for.
        seed: of random operators.
        kinds: of findings to look for.
    """
    want = _Expected(part, values, seed)
    done = import_graph(part.graph(values))
    net = done.network
    target = host_target(threads)
    net.target = target
    if IMPORT in kinds and (found := want.compare(_interpreted(done, part, values, seed))):
        return Culprit(IMPORT, (), *found)
    ran = 0
    wrong: list[tuple[int, tuple[float, float, int]]] = []

    def check(p: Pass, _: Network) -> None:
        if PASS in kinds and (found := want.compare(_interpreted(done, part, values, seed))):
            wrong.append((ran, found))
            raise _Stop

    def step(finished: int, _: int) -> None:
        nonlocal ran
        ran = finished

    try:
        run_passes(net, passes, after=check, progress=step)
    except _Stop:
        number, found = wrong[0]
        return Culprit(PASS, tuple(passes[: number + 1]), *found)
    if KERNEL in kinds and (kernel := _wrong_kernel(done, part, values, seed, target)):
        text, where, found = kernel
        return Culprit(KERNEL, tuple(passes), *found, text, where)
    if CODE not in kinds:
        return None
    return _wrong_code(part, values, passes, want, target)


def _wrong_code(
    part: Slice, values: Mapping[str, Tensor], passes: Sequence[Pass], want: _Expected, target: DriverTarget
) -> Culprit | None:
    """The first pass after which the whole code is wrong, by bisection."""
    last = _code_differs(part, values, passes, want, target)
    if last is None or not passes:
        return None if last is None else Culprit(CODE, (), *last)
    if _code_differs(part, values, passes[:-1], want, target) is None:
        return Culprit(CODE, tuple(passes), *last)
    if first := _code_differs(part, values, (), want, target):
        return Culprit(CODE, (), *first)
    right, bad = 0, len(passes) - 1  # right with so many passes, wrong with so many
    while bad - right > 1:
        middle = (right + bad) // 2
        found_here = _code_differs(part, values, passes[:middle], want, target)
        if found_here is None:
            right = middle
        else:
            bad, last = middle, found_here
    return Culprit(CODE, tuple(passes[:bad]), *last)


class _Expected:
    """Eager PyTorch's results, and those for inputs whose last bits are others."""

    def __init__(self, part: Slice, values: Mapping[str, Tensor], seed: int) -> None:
        self.want = [_numpy(t) for t in part.evaluate(values, seed)]
        near = {n: _perturbed(t, number) for number, (n, t) in enumerate(values.items())}
        self.near = [_numpy(t) for t in part.evaluate(near, seed)]
        self.types = [TORCH_TYPES[t.dtype] for t in part.evaluate(values, seed)]

    def compare(self, got: Sequence[Any]) -> tuple[float, float, int] | None:
        """Error, tolerance and number of the result that differs the most."""
        return _worst([_numpy(t) for t in got], self.want, self.near, self.types)


def _worst(
    got: Sequence[Array], want: Sequence[Array], near: Sequence[Array], types: Sequence[str]
) -> tuple[float, float, int] | None:
    found, least = None, 1.0
    for number, columns in enumerate(zip(got, want, near, types, strict=True)):
        error, tolerance = distance(*columns)
        ratio = error / tolerance if tolerance else (float("inf") if error else 0.0)
        if ratio > least:
            least, found = ratio, (error, tolerance, number)
    return found


def _perturbed(t: Tensor, seed: int) -> Tensor:
    if not t.is_floating_point():
        return t
    generator = torch.Generator().manual_seed(seed)
    sign = torch.randint(0, 2, t.shape, generator=generator) * 2 - 1
    off = (t.double() * (1 + torch.finfo(t.dtype).eps * sign)).to(t.dtype)
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(off) if t.numel() else t


def _numpy(t: Any) -> Array:
    t = t.detach().resolve_conj().resolve_neg()
    array: Array = (t.float() if t.dtype is torch.bfloat16 else _plain(t)).numpy()
    return array


def flat_buffer(t: Tensor) -> Array:
    """A tensor's elements from the first to the last, as stored."""
    t = t.detach().resolve_conj().resolve_neg()
    extent = 0 if not t.numel() else 1 + sum((d - 1) * s for d, s in zip(t.shape, t.stride(), strict=True))
    flat = torch.as_strided(t, (extent,), (1,))
    array: Array = _plain(flat).numpy()
    return array.copy()


def _plain(t: Tensor) -> Tensor:
    """The bits of a type that NumPy lacks, as dcir's own buffers hold them."""
    bits = t.dtype is torch.bfloat16 or (t.dtype.is_floating_point and t.dtype.itemsize == 1)
    return t.view(torch.uint16 if t.dtype.itemsize == 2 else torch.uint8) if bits else t


def _tensor(buffer: Array, r: Result) -> Tensor:
    t = torch.from_numpy(np.ascontiguousarray(buffer))
    return torch.as_strided(t.view(FROM_NAME[r.dtype]), r.shape, r.strides, r.offset)


def _store(
    done: Imported, part: Slice, values: Mapping[str, Tensor], seed: int, keep: set[str] | None
) -> dict[str, Array]:
    net = done.network
    buffers = {n: flat_buffer(t) for n, t in zip(net.inputs, part.given(values), strict=True) if n}
    buffers |= {n: flat_buffer(t) for n, t in done.constants.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return interpret(net, buffers, keep=keep)


def _interpreted(done: Imported, part: Slice, values: Mapping[str, Tensor], seed: int) -> list[Tensor]:
    store = _store(done, part, values, seed, done.network.result_containers())
    return _ordered(done, [_tensor(store[r.data], r) for r in done.network.results])


def _ordered(done: Imported, results: Sequence[Tensor]) -> list[Tensor]:
    return [results[value] for kind, value in done.outputs if kind == "result"]


def _code_differs(
    part: Slice,
    values: Mapping[str, Tensor],
    passes: Sequence[Pass],
    want: _Expected,
    target: DriverTarget,
    seed: int = 0,
) -> tuple[float, float, int] | None:
    """How far the generated code of the whole graph is off."""
    done = import_graph(part.graph(values))
    done.network.target = target
    run_passes(done.network, passes)
    program = assemble(done, compile_network(done.network))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return want.compare(program(part.given(values)))


def _wrong_kernel(
    done: Imported, part: Slice, values: Mapping[str, Tensor], seed: int, target: DriverTarget
) -> tuple[str, str, tuple[float, float, int]] | None:
    """The first kernel whose code and reference differ on the operands it has in the network."""
    net = done.network
    store = _store(done, part, values, seed, None)
    bounds = index_bounds(net)
    seen: set[Any] = set()
    for op, run in zip(net.ops(), invocations(net, target.machine.threads), strict=True):
        spec, types = run.spec, run.types
        if run.calls_torch:
            continue
        if (spec, types) in seen:
            continue
        seen.add((spec, types))
        found = _kernel_differs(net, op, spec, store, bounds)
        if found is not None:
            stem = target.backend.emitters.plan(spec, target.machine).name
            return f"{stem} of {type(spec).__name__} {op.label}", op.origin, found
    return None


def _kernel_differs(
    net: Network, op: Op, spec: Operator, store: Mapping[str, Array], bounds: Mapping[str, int]
) -> tuple[float, float, int] | None:
    """How far one kernel's code is off; only elements that the operator writes count."""
    alone, ins, outs = Network(), net.ins(op), net.outs(op)
    alone.target = net.target
    names: dict[str, str] = {}
    for o in ins:
        if o.data not in names:
            c = net.containers[o.data]
            names[o.data] = alone.add_container(c.shape, c.dtype, "input", c.strides)
    made: dict[str, str] = {}
    for o in outs:
        if o.data not in made:
            c = net.containers[o.data]
            made[o.data] = alone.add_container(c.shape, c.dtype, "transient", c.strides)
            alone.promote(made[o.data])
    for n, new in made.items():
        c = net.containers[n]
        alone.results.append(Result(new, (c.size,), (1,), 0, c.dtype))
    alone.add_op(
        spec, [Operand(names[o.data], o.offset) for o in ins], [Operand(made[o.data], o.offset) for o in outs]
    )  # fmt: skip
    given = {names[n]: store[n] for n in names}
    want, written = _referenced(alone, spec, given, made.values())
    near, _ = _referenced(alone, spec, {n: _other_bits(alone, n, b) for n, b in given.items()}, made.values())
    done = Imported(alone, {}, [("result", i) for i in range(len(alone.results))])
    program = assemble(done, compile_network(alone))
    tensors = [_whole(given[n], alone, n) for n in alone.inputs]
    got = [_numpy(t) for t in program(tensors)]
    return _worst(
        [g.reshape(-1)[m] for g, m in zip(got, written, strict=True)],
        [w[m] for w, m in zip(want, written, strict=True)],
        [w[m] for w, m in zip(near, written, strict=True)],
        [alone.containers[n].dtype for n in made.values()],
    )


def _whole(buffer: Array, net: Network, name: str) -> Tensor:
    c = net.containers[name]
    t = torch.from_numpy(buffer.copy())
    return torch.as_strided(t.view(FROM_NAME[c.dtype]), c.shape, c.strides)


def _other_bits(net: Network, name: str, buffer: Array) -> Array:
    dtype = net.containers[name].dtype
    if TYPES[dtype].kind != "float":
        return buffer
    t = torch.from_numpy(buffer.copy())
    return flat_buffer(_perturbed(t.view(FROM_NAME[dtype]), len(name)))


def _referenced(
    net: Network, spec: Operator, given: Mapping[str, Array], made: Any
) -> tuple[list[Array], list[np.ndarray[Any, np.dtype[np.bool_]]]]:
    """Elements of the results by the reference, and which of them it writes: those that do not depend on what was there."""
    (op,) = net.ops()
    ins, outs = net.ins(op), net.outs(op)
    runs = []
    for fill in (0, 1):
        b = {n: np.full(net.containers[n].size, fill, to_numpy(net.containers[n].dtype)) for n in made}
        with np.errstate(all="ignore"):
            spec.reference_at(
                [given[o.data] for o in ins],
                [b[o.data] for o in outs],
                [o.offset for o in ins],
                [o.offset for o in outs],
            )
        runs.append(b)
    wide = [bf16_to_f32(v) if net.containers[n].dtype == "bf16" else v for n, v in runs[0].items()]
    masks = []
    for first, second in zip(runs[0].values(), runs[1].values(), strict=True):
        floats = first.dtype.kind in "fc"
        masks.append((first == second) | ((first != first) & (second != second)) if floats else first == second)
    return wide, masks
