"""Attention in pairs of bfloat16, on the matrix unit and by dot products: right at every remainder of a tile, however operands lie."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import EMITTERS, plan
from dcir.codegen.moving_kernel import moving_kernel
from dcir.codegen.symbolic import Names
from dcir.cost.machine import Machine
from dcir.ir.refusal import Refusal
from dcir.ir.sizes import Bounds
from dcir.isa import ISAS
from dcir.ops.analysis.size_unification import chosen_samples, unified_rows
from dcir.ops.library.attention import AttentionSpec
from tests.codegen.cpp.tiles.matrix_unit_twin import HERE
from tests.codegen.cpp.tiles.tile_harness import RUNNABLE, compile_plans

pytestmark = pytest.mark.in_turn(2)

NAMES = [name for name in ("amx", "avx512bf16") if name in RUNNABLE or (name == "amx" and HERE)]
BOUNDS = {"s0": Bounds(4, 300)}


@dataclass(frozen=True)
class Case:
    """``rows``: heads lie within rows of positions; "turned": elements across positions; mask: flat, full, least or bool."""

    m: int
    n: int
    d: int
    causal: bool = False
    mask: str = ""
    lies: str = "heads"
    group: int = 1
    first: int = 0
    strict: bool = False
    scale: float = 0.2

    def spec(self) -> AttentionSpec:
        heads = 2 * self.group

        def strides(count: int, of: int) -> tuple[int, ...]:
            if self.lies == "rows":
                return (count * of * self.d, self.d, of * self.d, 1)
            if self.lies == "turned":
                return (of * count * self.d, count * self.d, 1, count)
            return (of * count * self.d, count * self.d, self.d, 1)

        q, kv, more = strides(self.m, heads), strides(self.first or self.n, 2), ()
        if self.first:
            more = (strides(self.n - self.first, 2),) * 2
        masks = {
            "": (), "flat": (self.n, 0, 0, 1), "full": (self.m * self.n, 0, self.n, 1), "least": (0, 0, self.n, 1),
            "bool": (0, 0, self.n, 1),
        }  # fmt: skip
        return AttentionSpec(
            "bf16", 2, heads, self.m, self.n, self.d, self.scale, self.causal, q, kv, kv, q, (heads * self.m, self.m, 1),
            masks[self.mask], "bool" if self.mask == "bool" else "f32", (), self.strict, self.first, more, self.group,
        )  # fmt: skip


CASES = [
    Case(64, 128, 64), Case(4, 1, 8), Case(17, 33, 20, causal=True), Case(65, 129, 64, causal=True, lies="rows"),
    Case(130, 260, 33, causal=True, mask="full"), Case(49, 49, 32, mask="bool"), Case(64, 197, 80, mask="flat", lies="rows"),
    Case(50, 20, 8, causal=True), Case(100, 300, 96, lies="turned"), Case(31, 160, 128, group=3), Case(20, 150, 64, first=149),
    Case(33, 150, 48, first=70, lies="rows", mask="least"), Case(47, 257, 64, mask="least"), Case(16, 32, 256),
    Case(40, 90, 64, scale=-0.3), Case(21, 64, 64, mask="bool", strict=True), Case(80, 15, 17, lies="rows"),
]  # fmt: skip


def operands(spec: AttentionSpec, case: Case) -> list[np.ndarray]:
    """With a large first key, so that maxima change late or never, and masks that hide whole rows and blocks."""
    rng = np.random.default_rng(spec.m * spec.n)
    reads, _ = spec.footprint()
    pieces = [torch.from_numpy(rng.normal(size=n // 2)).to(torch.bfloat16) for n in reads[: 1 + len(spec.pieces())]]
    found = [p.view(torch.uint16).numpy() for p in pieces]
    if case.mask:
        of = (spec.batch if case.mask in ("flat", "full") else 1, 1 if case.mask == "flat" else spec.m, spec.n)
        hidden = rng.uniform(size=of) < 0.4
        hidden[:, -1] = spec.n > 1
        hidden[:, -1, 0] = case.mask != "least"  # of such rows the reference has no mean
        hidden[0, 0, : spec.n // 2] = True
        if case.mask == "bool":
            found.append(~hidden.ravel())
        else:
            least = np.finfo("f4").min if case.mask == "least" else -np.inf
            found.append(np.where(hidden, least, rng.normal(size=of)).astype("f4").ravel())
    return found


def results(spec: AttentionSpec) -> list[np.ndarray]:
    """Two more than there are, to see that nobody writes there."""
    _, writes = spec.footprint()
    return [np.zeros(writes[0] // 2 + 2, "u2"), np.zeros(writes[1] // 4 + 2, "f4")]


def check(spec: AttentionSpec, got: list[np.ndarray], ins: list[np.ndarray]) -> None:
    """Of a sum of probabilities, each of eight bits, times values of unit variance; logarithms are of f32."""
    wanted = [a[:-2].copy() for a in results(spec)]
    spec.reference(ins, wanted)
    o, want = (torch.from_numpy(a).view(torch.bfloat16).double() for a in (got[0][:-2], wanted[0]))
    torch.testing.assert_close(o, want, rtol=8e-3, atol=8e-3, equal_nan=True)
    np.testing.assert_allclose(got[1][:-2], wanted[1], rtol=1e-5, atol=1e-5)
    assert not got[0][-2:].any() and not got[1][-2:].any()


@pytest.fixture(scope="module", params=NAMES)
def kernels(request):
    machine = Machine(ISAS[request.param], 2)
    entries = []
    for case in CASES:
        spec = case.spec()
        made = plan(spec, machine)
        assert made.name == "attention_pairs"
        types = ["bf16"] * (1 + len(spec.pieces())) + [spec.mask_dtype] * bool(spec.mask)
        entries.append((made, tuple(types), ("bf16", "f32")))
    return dict(zip(CASES, compile_plans(entries, ["-O2"]), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_reference(kernels, case):
    spec = case.spec()
    ins, got = operands(spec, case), results(spec)
    kernels[case](*map(torch.from_numpy, (*ins, *got)))
    check(spec, got, ins)


def test_what_is_not_a_number_stays_with_its_query_and_infinities_with_their_key(kernels):
    case = CASES[0]
    spec = case.spec()
    ins, got = operands(spec, case), results(spec)
    nan, inf = 0x7FC0, 0x7F80
    ins[0][5 * 64 + 3] = nan
    ins[1][64 * 128 * 3 + 7] = inf
    kernels[case](*map(torch.from_numpy, (*ins, *got)))
    rows = torch.from_numpy(got[0][:-2]).view(torch.bfloat16).view(2, 2, 64, 64)
    broken = rows.isnan().all(-1)
    assert broken[0, 0].tolist() == [i == 5 for i in range(64)]
    assert torch.equal(rows.isnan().any(-1), broken)
    # Infinity less infinity is no number; where the score is minus infinity, the key is not seen.
    q = torch.from_numpy(ins[0]).view(torch.bfloat16).view(2, 2, 64, 64)
    assert torch.equal(broken[1, 1], q[1, 1, :, 7] > 0)
    assert not broken[0, 1].any() and not broken[1, 0].any()


def test_a_query_that_sees_only_the_least_number_gets_the_mean(kernels):
    case = next(c for c in CASES if c.mask == "least" and not c.first)
    spec = case.spec()
    ins, got = operands(spec, case), results(spec)
    ins[-1].reshape(case.m, case.n)[7] = np.finfo("f4").min
    kernels[case](*map(torch.from_numpy, (*ins, *got)))
    rows = torch.from_numpy(got[0][:-2]).view(torch.bfloat16).view(2, 2, case.m, case.d)
    values = torch.from_numpy(ins[2]).view(torch.bfloat16).view(2, 2, case.n, case.d)
    torch.testing.assert_close(rows[:, :, 7].double(), values.double().mean(2), rtol=8e-3, atol=1e-3)


MOVING = [
    Case(1, 1, 64, causal=True, lies="rows"), Case(1, 1, 40, lies="rows", mask="full"), Case(1, 1, 64, lies="rows", group=2),
    Case(1, 1, 64, lies="rows", first=1),
]  # fmt: skip


def at(case: Case, n: int) -> Case:
    return replace(case, m=n, n=n, first=n - 1 if case.first else 0)


@pytest.fixture(scope="module", params=NAMES)
def moving_kernels(request):
    machine, entries = Machine(ISAS[request.param], 2), []
    for case in MOVING:
        _, samples = chosen_samples(BOUNDS)
        (spec,) = unified_rows([(at(case, s["s0"]).spec(),) for s in samples], samples)
        types = ["bf16"] * (1 + len(spec.pieces())) + ["f32"] * bool(spec.mask)
        made = moving_kernel(EMITTERS, spec, Names.of(BOUNDS, {"s0": 128}), machine, len(types))
        assert not isinstance(made, Refusal), made.reason
        entries.append((made, (*types, "i64"), ("bf16", "f32")))
    return dict(zip(MOVING, compile_plans(entries, ["-O2"]), strict=True))


@pytest.mark.parametrize("case", MOVING, ids=str)
def test_one_kernel_is_right_for_all_sizes(moving_kernels, case):
    for n in (4, 5, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129, 255, 300):
        here = at(case, n)
        spec = here.spec()
        ins, got = operands(spec, here), results(spec)
        moving_kernels[case](*map(torch.from_numpy, (*ins,)), torch.tensor([n]), *map(torch.from_numpy, got))
        check(spec, got, ins)
