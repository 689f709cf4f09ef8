"""The report's figures are the truth: bytes are counted again, element by element, and the arena is the one allocated."""

import ctypes
import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import dcir
from dcir.codegen.compile import planned_bytes
from dcir.driver import handle
from dcir.driver.compile import Compilation
from dcir.driver.optimize import compiled_with
from dcir.driver.session import Session
from dcir.ir.loop_nest import LoopNest
from dcir.ir.memory_plan import ARENA, PREPARED
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.ir.types import itemsize, to_numpy
from dcir.isa import ISAS
from dcir.options import Options
from dcir.report.explain import Report
from dcir.runtime import blocks
from tests.cost.test_machine import MODEL

pytestmark = pytest.mark.processor


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


class Block(nn.Module):
    """A convolution with its norm, a residual, a pooling and a classifier; no window overlaps another."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 32, 1)
        self.head = nn.Linear(32, 7)

    def forward(self, x):
        y = F.relu(self.norm(self.conv1(x)))
        y = F.max_pool2d(y + self.conv2(y), 2)
        return self.head(y.mean((2, 3))).log_softmax(-1)


class Encoder(nn.Module):
    """Attention and a feed-forward network, each with residual and norm; an embedding in front."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, tokens):
        x = self.table(tokens)
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        x = self.norm1(x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def mlp():
    return nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 5), nn.Softmax(-1))


NETWORKS = {
    "mlp": (mlp, lambda: torch.randn(6, 24)),
    "convolutions": (Block, lambda: torch.randn(2, 3, 8, 8)),
    "transformer": (Encoder, lambda: torch.randint(0, 11, (3, 10))),
}


def compiled(name, level, *, train):
    """(network, library, record) of every graph of a call, or of a training step."""
    make, inputs = NETWORKS[name]
    kept = []

    def watch(kind, done, library, program):
        kept.append((done, library))
        return program

    session = Session(Options.make(level=level, threads=1), watch=watch)
    fast = compiled_with(make().train(train), session)
    with torch.set_grad_enabled(train):
        out = fast(inputs())
    if train:
        out.square().sum().backward()
    return [(done.network, library, record) for (done, library), record in zip(kept, session.graphs, strict=True)]


class Counting(np.ndarray):
    """An array that remembers which of its elements were read or written."""

    def __array_finalize__(self, other):
        self.seen = getattr(other, "seen", None)

    def __getitem__(self, where):
        if isinstance(where, slice):  # only ever [:0], which asks for the type
            assert where == slice(0)
            return np.asarray(self)[:0]
        self.seen.update(np.asarray(where).ravel().tolist())
        return np.asarray(super().__getitem__(where))

    def __setitem__(self, where, value):
        self.seen.update(np.asarray(where).ravel().tolist())
        super().__setitem__(where, value)


class Planned(BaseException):
    """A graph is rewritten, and its code would be made now."""


def counted(net, op):
    """Bytes of every operand of ``op`` that its loop nest really touches, input operands first; and its program."""
    program = op.spec.loop_nest()

    def buffer(operand):
        c = net.containers[operand.data]
        values = np.zeros(c.size + 1, to_numpy(c.dtype)).view(Counting)
        values.seen = set()
        return values

    ins, outs = net.ins(op), net.outs(op)
    a, b = [buffer(o) for o in ins], [buffer(o) for o in outs]
    # Everything one element later: what a masked load reads where its mask is false is element 0, and counts for nothing.
    run_program(program, a, b, reference, [o.offset + 1 for o in ins], [o.offset + 1 for o in outs])
    sizes = [itemsize(net.containers[o.data].dtype) for o in (*ins, *outs)]
    return [len(v.seen - {0}) * s for v, s in zip((*a, *b), sizes, strict=True)], program


def edges(net, op):
    """The memlets of an operator in the order of its operands, and their bytes."""
    ins = sorted(net.state.in_edges(op), key=lambda e: int(e.dst_conn[1:]))
    outs = sorted(net.state.out_edges(op), key=lambda e: int(e.src_conn[1:]))
    memlets = [e.data for e in (*ins, *outs)]
    return memlets, [int(m.volume) * itemsize(net.containers[m.data].dtype) for m in memlets]


def distinct(net, op, memlets, told):
    """Bytes of all operands; what several read of one container, the same elements, once."""
    inputs = len(net.ins(op))
    reads = {(m.data, tuple(map(tuple, m.subset))): n for m, n in zip(memlets[:inputs], told, strict=False)}
    return sum(reads.values()) + sum(told[inputs:])


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("level", [0, 2, 4])
@pytest.mark.parametrize("name", NETWORKS)
def test_bytes_are_those_that_are_touched(name, level, train):
    exact = 0
    for net, _, record in compiled(name, level, train=train):
        total, prepared = 0, net.prepared_ops()
        for op in net.ops():
            memlets, told = edges(net, op)
            total += 0 if op in prepared else distinct(net, op, memlets, told)
            bound = [n for part in op.spec.footprint() for n in part]  # what costs are counted with
            assert all(b >= n for b, n in zip(bound, told, strict=True)), op.spec
            if op.spec.loop_nest() is None:
                continue
            truth, _ = counted(net, op)
            for memlet, n, true in zip(memlets, told, truth, strict=True):
                assert n >= true if memlet.dynamic else n == true, (op.spec, memlet)
                exact += not memlet.dynamic
        assert record.bytes_moved == total == sum(n for _, n in record.work)
    assert exact >= 1


def test_windows_that_do_not_overlap_are_counted_exactly():
    """Max pooling reads by computed positions, and a convolution behind padding through a mask: both exact here."""
    for net, _, _ in compiled("convolutions", 2, train=False):
        for op in net.ops():
            if hasattr(op.spec, "in_size") or "gather" in str([s.op for s in getattr(op.spec, "body", ())]):
                truth, _ = counted(net, op)
                assert [n for part in op.spec.footprint() for n in part] == truth


def test_operations_are_those_that_pytorch_counts():
    """Products and convolutions, the only work that its counter knows, without the taps that lie in the padding."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        Block().eval()(torch.randn(2, 3, 8, 8))
    ((net, _, record),) = compiled("convolutions", 0, train=False)
    ours = {op: op.spec.operations() for op in net.ops()}
    taps = sum(1 for p in range(8) for k in range(3) if 0 <= p + k - 1 < 8) ** 2
    outside = 2 * 2 * 32 * 3 * (9 * 64 - taps)
    products = sum(
        n - 2 * 32 * 64 * int(getattr(op.spec, "bias", False))
        for op, n in ours.items()
        if not isinstance(op.spec, LoopNest)
    )
    assert products == counter.get_total_flops() - outside
    assert sum(n for n, _ in record.work) == sum(ours.values())


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_peak_is_what_is_allocated_and_used(name, level, train, monkeypatch):
    guard, pattern = 4096, 0xA5
    arenas = []

    class Watched(blocks.Block):
        def __init__(self, nbytes):
            super().__init__(nbytes + guard)
            ctypes.memset(self.address, pattern, nbytes + guard)
            self.nbytes = nbytes
            arenas.append(self)

    # Each call has scratch memory of its own here, which says which graph wrote what.
    monkeypatch.setattr(blocks.Arenas, "take", lambda self, nbytes: Watched(nbytes))
    graphs = compiled(name, level, train=train)
    for net, library, record in graphs:
        (arena, *_) = [a for a in arenas if a.nbytes == record.arena_bytes]
        bytes_now = np.ctypeslib.as_array((ctypes.c_ubyte * (arena.nbytes + guard)).from_address(arena.address))
        assert (bytes_now[arena.nbytes :] == pattern).all()
        used = np.flatnonzero(bytes_now[: arena.nbytes] != pattern)
        planned = record.passes[-1].peak_after if record.passes else None
        scratch = record.arena_bytes - -(-net.memory.nbytes(ARENA) // 64) * 64 if net.memory.offsets(ARENA) else None
        if level == 4:
            assert planned == net.memory.nbytes(ARENA) and record.prepared_bytes == net.memory.nbytes(PREPARED)
            transient = [
                n for n, c in net.containers.items() if c.role == "transient" and n not in net.memory.offsets(PREPARED)
            ]
            assert set(transient) == set(net.memory.offsets(ARENA))
            if scratch == 0 and planned:
                # The last container of the plan ends within a cache line of its end, and is written.
                assert planned - 64 <= used.max() + 1 <= planned
        assert record.arena_bytes == library.arena_bytes >= net.memory.nbytes(ARENA)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_kept_and_the_peak_of_forward_and_backward(name, monkeypatch):
    """Kept bytes are those of the forward's results that only the backward reads; both graphs use one piece of scratch memory."""
    made, kept = [], []

    class Counted(blocks.Block):
        def __init__(self, nbytes):
            super().__init__(nbytes)
            made.append(nbytes)

    monkeypatch.setattr(blocks, "Block", Counted)
    make, inputs = NETWORKS[name]

    def watch(kind, done, library, program):
        def call(args):
            given, results = list(args), program(args)
            if kind == "forward":
                for_caller = 1 + len(list(net.buffers()))  # it replaces the buffers
                known = {t.untyped_storage().data_ptr() for t in (*given, *results[:for_caller])}
                late = [t.untyped_storage() for t in results[for_caller:]]
                kept.append({s.data_ptr(): s.nbytes() for s in late if s.data_ptr() not in known})
            return results

        return call

    net = make().train()
    session = Session(Options.make(threads=1), watch=watch)
    compiled_with(net, session)(inputs()).square().sum().backward()
    forward, backward = session.graphs
    assert (forward.kind, backward.kind) == ("forward", "backward")
    assert forward.saved_bytes == sum(kept[0].values()) and backward.saved_bytes == 0
    scratch = max(forward.arena_bytes, backward.arena_bytes)
    report = Report(session.graphs)
    assert report.peak_bytes(forward) == report.peak_bytes(backward) == forward.saved_bytes + scratch
    made.clear()
    compiled_with(net, session)(inputs()).square().sum().backward()
    assert sum(made) == 0, "the block of the first step serves the next"
    assert [b.nbytes for b in session.arenas._idle] == [scratch]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NETWORKS)
def test_levels_do_not_need_more_memory_or_traffic_than_none(name, isa, monkeypatch):
    """For every processor: what is planned takes no code, and the figures of code that runs are what was planned."""
    monkeypatch.setenv("DCIR_ISA", isa)
    moved, scratch = [], []

    def planned(self, net, **_):
        moved.append(self.record.bytes_moved)
        scratch.append(planned_bytes(net))
        raise Planned

    monkeypatch.setattr(Compilation, "_library", planned)
    make, inputs = NETWORKS[name]
    for level in (0, 4):
        torch._dynamo.reset()
        with torch.no_grad(), pytest.raises(Planned):
            compiled_with(make().eval(), Session(Options.make(level=level, threads=1)))(inputs())
    assert moved[1] < moved[0] and scratch[1] <= scratch[0]


def test_the_floor_is_told_where_the_machine_was_measured(monkeypatch):
    monkeypatch.setattr(handle, "rates", lambda: MODEL)
    fast = dcir.optimize(mlp(), threads=1)
    x = torch.randn(6, 24)
    with torch.no_grad():
        fast(x)
    report = fast.dcir.explain()
    (graph,) = report.to_json()["graphs"]
    want = sum(MODEL.floor_seconds(flops, moved, threads=1) for flops, moved in graph["work"])
    assert graph["floor_seconds"] == want > 0 and graph["flops"] == sum(f for f, _ in graph["work"])
    assert f"{want * 1e3:.3g} ms with 1 threads" in report.to_text()
    unknown = Report(report.graphs, machine=dataclasses.replace(MODEL, measured=False))
    assert unknown.to_json()["graphs"][0]["floor_seconds"] is None and "unknown before" in unknown.to_text()
    assert json.loads(json.dumps(report.to_json())) == json.loads(json.dumps(report.to_json()))


def test_a_profile_has_its_floor(monkeypatch):
    from dcir.driver.measure import profile

    monkeypatch.setattr(profile, "rates", lambda: MODEL)
    with torch.no_grad():
        result = dcir.optimize(mlp(), threads=1).dcir.profile(torch.randn(6, 24), seconds=0.02)
    for row, floor in ((r, [s for s in result.steps if s.kernel == r.kernel]) for r in result.rows()):
        want = sum(MODEL.floor_seconds(s.flops, s.bytes, threads=1) for s in floor)
        assert row.floor_ratio == pytest.approx(want * 1e3 / row.least_ms)
    assert result.floor_ms == pytest.approx(sum(s.floor_ms for s in result.steps))
    assert "floor of all kernels" in result.to_text()
    monkeypatch.setattr(profile, "rates", lambda: dataclasses.replace(MODEL, measured=False))
    with torch.no_grad():
        result = dcir.optimize(mlp(), threads=1).dcir.profile(torch.randn(6, 24), seconds=0.02)
    assert result.floor_ms is None and "unknown before" in result.to_text()
