"""The database of measured choices: it selects among what emitters offer, and nothing else in it has any effect."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from dcir.cache import Cache
from dcir.codegen.choices import MODELS, Choice
from dcir.codegen.compile import compile_network, planned_bytes
from dcir.codegen.cpp.emitters import EMITTERS, plan
from dcir.codegen.cpp.tiles.gemm import packed_blocking
from dcir.codegen.registry import Emitters
from dcir.codegen.tuned import KIND, Database, Verdict
from dcir.cost.machine import Machine
from dcir.driver.measure.machine import rates
from dcir.driver.measure.tune_bench import BenchedKernel, Buffers, Trial
from dcir.driver.targets.host import host_machine
from dcir.identity import source_identity
from dcir.ir.network import Network, Operand
from dcir.isa import ISAS, host_isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.winograd import points
from tests.on_host import on_host, target

pytestmark = pytest.mark.in_turn(3)

SPEC = ContractionSpec(alike("f32"), (), 37, 70, 400, (400, 1), (0, 0), (70, 1), 32)
TYPES = (("f32", "f32"), ("f32",))
OTHER = Choice((("tile", (10, 2, 1) if host_isa().registers >= 32 else (4, 2, 1)),))


def product(m, n, k, packed=True, lda=None):
    b, panel = ((0, 0), 32) if packed else ((1, k), 0)
    return ContractionSpec(alike("f32"), (), m, n, k, (lda or k, 1), b, (n, 1), panel)


def sizes_of(spec):
    b = -(-spec.n // 32) * 32 * spec.k if spec.panel else spec.n * spec.k
    return spec.m * spec.a[0], b, spec.m * spec.n


def network(spec=SPEC):
    net = Network()
    a, b, c = (
        net.add_container((n,), "f32", r) for n, r in zip(sizes_of(spec), ("input", "input", "transient"), strict=True)
    )
    net.add_op(spec, [Operand(a), Operand(b)], [Operand(c)])
    net.promote(c)
    return net


def database(cache, threads=1):
    return Database(host_machine(threads), EMITTERS, source_identity(), cache)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path))
    return Cache.default()


VERDICT = Verdict(OTHER, 1e-3, 1.2e-3, 0.01, 7, ((OTHER, 1e-3), (MODELS, 1.2e-3)))


def test_a_verdict_comes_back(cache):
    base = database(cache)
    assert base.find(SPEC, TYPES, 1) is None
    base.keep(SPEC, TYPES, 1, VERDICT)
    assert base.find(SPEC, TYPES, 1) == VERDICT
    base.keep(SPEC, TYPES, 1, replace(VERDICT, choice=MODELS))
    assert base.find(SPEC, TYPES, 1).choice == MODELS
    assert [e.kind for e in cache.ls()] == [KIND]
    assert cache.info().by_kind[KIND][0] == 1
    cache.clear()
    assert base.find(SPEC, TYPES, 1) is None


def test_it_is_for_one_kernel_machine_and_code(cache):
    base = database(cache)
    base.keep(SPEC, TYPES, 1, VERDICT)
    assert base.find(replace(SPEC, m=38), TYPES, 1) is None
    assert base.find(SPEC, TYPES, 2) is None
    assert database(cache, threads=2).find(SPEC, TYPES, 1) is None
    assert replace(base, code="others").find(SPEC, TYPES, 1) is None
    assert replace(base, emitters=Emitters("another")).find(SPEC, TYPES, 1) is None


@pytest.mark.parametrize("text", [
    "", "not json", "[]", "{}", "[" * 100000, '{"choice": [["tile", 1]]}',
    '{"choice": [["tile", null]], "seconds": 1, "models": 1, "spread": 0, "tried": 1}',
    '{"choice": [], "seconds": NaN, "models": 1, "spread": 0, "tried": 1}',
    '{"choice": [], "seconds": "x", "models": 1, "spread": 0, "tried": 1}',
    '{"choice": "__import__", "seconds": 1, "models": 1, "spread": 0, "tried": 1}',
    '{"choice": [["tile", [8, 2, 1]]], "seconds": 1, "models": 1, "spread": 0, "tried": 1, "times": [[[], -1]]}',
    '{"choice": [["tile", [8, 2, 1]]], "seconds": 1, "models": 1, "spread": 0, "tried": 1, "times": {"a": 1}}',
    '{"choice": [["tile", [8, 2, 1]]], "seconds": 1, "models": 1, "spread": 0, "tried": 1, "times": [[["tile", 1], 1]]}',
])  # fmt: skip
def test_what_cannot_be_read_changes_nothing(cache, text):
    """Sealed, hence as its writer left it; but of another program, or another version."""
    plain = compile_network(on_host(network(), 1), cache=cache)
    base = database(cache)
    cache.get_or_build(KIND, base._key(SPEC, TYPES, 1), ".json", lambda draft: draft.write_text(text))
    assert base.choice(SPEC, TYPES, 1) == MODELS
    assert compile_network(on_host(network(), 1), cache=cache).path == plain.path


def test_a_damaged_file_changes_nothing(cache):
    base = database(cache)
    base.keep(SPEC, TYPES, 1, VERDICT)
    path = next(e.path for e in cache.ls(KIND))
    path.write_bytes(path.read_bytes().replace(b"tile", b"tite"))
    assert base.find(SPEC, TYPES, 1) is None


def test_what_is_not_offered_changes_nothing(cache):
    plain = compile_network(on_host(network(), 1), cache=cache)
    for choice in (Choice((("tile", (99, 2, 1)),)), Choice((("shell", "rm"),)), Choice((("tile", (13, 2, 1)),))):
        database(cache).keep(SPEC, TYPES, 1, replace(VERDICT, choice=choice))
        assert compile_network(on_host(network(), 1), cache=cache).path == plain.path


def test_a_choice_is_used_and_found_again_without_a_compiler(cache):
    plain = compile_network(on_host(network(), 1), cache=cache)
    assert not plain.tuned
    database(cache).keep(SPEC, TYPES, 1, VERDICT)
    tuned = compile_network(on_host(network(), 1), cache=cache)
    (kernel,) = tuned.tuned
    assert tuned.measured == {kernel: VERDICT.times} and tuned.choice_of(kernel) == str(OTHER)
    assert list(tuned.tuned.values()) == [OTHER] and tuned.path != plain.path and tuned.compiled == 1
    again = compile_network(on_host(network(), 1), cache=cache)
    assert again.path == tuned.path and again.compiled == 0
    assert planned_bytes(on_host(network(), 1)) == tuned.arena_bytes
    assert plan(SPEC, Machine(host_isa(), 1), OTHER) != plan(SPEC, Machine(host_isa(), 1))
    for entry in cache.ls(KIND):
        entry.path.unlink()
    assert compile_network(on_host(network(), 1), cache=cache).path == plain.path


_WRITER = """
import sys
from tests.codegen.test_tuned import *
base = database(Cache.default())
for i in range(40):
    base.keep(SPEC, TYPES, 1, replace(VERDICT, tried=int(sys.argv[1]) + i))
    found = base.find(SPEC, TYPES, 1)
    assert found is None or found.choice == OTHER
"""


def test_two_processes_leave_one_whole_verdict(cache, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    running = [subprocess.Popen([sys.executable, "-c", _WRITER, n], env=environment) for n in ("0", "1000")]
    assert [p.wait(120) for p in running] == [0, 0]
    base = database(cache)
    assert base.find(SPEC, TYPES, 1) is None or base.find(SPEC, TYPES, 1).choice == OTHER
    base.keep(SPEC, TYPES, 1, VERDICT)
    assert json.loads(next(e.path for e in cache.ls(KIND)).read_text())["tried"] == 7


def convolution(cin, cout, size, last, winograd=()):
    """A 3 x 3 convolution of two images with a border, and the sizes of its operands."""
    h, w = size
    x, y = ((c * h * w, *((1, w * c, c) if last else (h * w, w, 1))) for c in (cin, cout))
    panel = 32 if last else 0
    spec = ConvolutionSpec("forward", alike("f32"), 2, 1, cin, cout, size, (3, 3), size, (1, 1), (1, 1), (1, 1), x,
                           (cin * 9, 9, 3, 1), y, False, panel, None, winograd)  # fmt: skip
    taps = points(winograd) if winograd else 9
    weights = -(-cout // 32) * 32 * cin * taps if panel else cout * cin * 9
    return spec, (2 * cin * h * w, weights, 2 * cout * h * w)


PRODUCTS = {
    "packed": product(37, 70, 900),
    "rows share sets": product(53, 200, 1024),
    "few rows": product(5, 130, 400),
    "row": product(1, 130, 400),
    "unpacked": product(70, 90, 300, packed=False),
    "unpacked, few rows": product(6, 90, 300, packed=False),
}
KERNELS = {name: (spec, sizes_of(spec)) for name, spec in PRODUCTS.items()} | {
    "convolution": convolution(20, 37, (9, 11), last=False),
    "convolution, channels last": convolution(20, 70, (9, 17), last=True),
    "Winograd": convolution(64, 70, (40, 41), last=True, winograd=(2, 4)),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("threads", [1, 3])
def test_every_alternative_computes_the_same(cache, name, threads):
    """Each within the error of the model's own choice, by the kernel's float64 reference."""
    spec, sizes = KERNELS[name]
    _check_alternatives(cache, spec, sizes, threads)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_tiles_that_are_fed_ahead(cache, slow, threads):
    """Rows packed and the next panel fetched: taken where caches fill slowly, offered elsewhere, right on every processor."""
    isa = replace(ISAS[host_isa().vectors], slow_fills=slow)
    spec = product(101, 1000, 700)
    taken = EMITTERS.decisions(spec, Machine(isa, threads)).taken
    if isa.vectors == "avx512":
        assert (taken["copy"] == packed_blocking.PACKED, bool(taken["spread"])) == (slow, slow)
    _check_alternatives(cache, spec, sizes_of(spec), threads, isa)


def _check_alternatives(cache, spec, sizes, threads, isa=None):
    made = target(threads)
    made = replace(made, machine=replace(made.machine, isa=isa or host_isa()))
    choices = EMITTERS.alternatives(spec, made.machine)[1:]
    assert len(choices) > 1
    kernel = BenchedKernel(spec, *TYPES, sizes, (0, 0, 0), (False, True, False), 1, min(threads, 2))
    trial = Trial(Buffers(kernel, 0, rates()), [MODELS, *choices], made, cache)
    wrong = [str(c) for i, c in enumerate(choices, 1) if not trial.right(i)]
    assert not wrong
    assert all(len(t) == 2 and min(t) > 0 for t in trial.run(0.0, 2))
