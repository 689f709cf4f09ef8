"""The twin finds what it is there for: faults planted in kernels, each by its name; and orders of threads do not change results."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dcir.codegen.cuda.emitters import plan_of
from dcir.codegen.cuda.launch import CudaPlan
from dcir.codegen.cuda.prelude import twin_text
from dcir.ir.loop_nest import LoopNest
from dcir.ops.library.fused_product import FusedProduct
from tests.codegen.cuda.nests import column_reduce, layer_norm, product, row_reduce, softmax
from tests.codegen.cuda.products import matrices, run, stored
from tests.codegen.cuda.twin import Twin, TwinFault, aligned_like, entry_text


def _planned(nest: LoopNest) -> CudaPlan:
    plan = plan_of(nest)
    assert isinstance(plan, CudaPlan)
    return plan


def _changed(plan: CudaPlan, old: str, new: str, *, launch: int = 0) -> CudaPlan:
    """The plan with a fault in a kernel's text."""
    text = plan.launches[launch].text
    assert old in text, text
    faulty = replace(plan.launches[launch], text=text.replace(old, new))
    return replace(plan, launches=(*plan.launches[:launch], faulty, *plan.launches[launch + 1 :]))


def _run(plan: CudaPlan, nest: LoopNest, folder: Path, *, skew: int = 0) -> tuple[Twin, list[np.ndarray]]:
    twin = Twin(plan.launches, folder)
    rng = np.random.default_rng(0)
    sizes = _sizes(nest)
    ins = [aligned_like(rng.standard_normal(n + skew).astype(np.float32)) for n in sizes[0]]
    outs = [aligned_like(np.zeros(n, np.float32), 0xFF) for n in sizes[1]]
    twin.run(plan, ins, outs, [skew] * len(ins), [0] * len(outs))
    return twin, outs


def _sizes(nest: LoopNest) -> tuple[list[int], list[int]]:
    reads, writes = nest.footprint()
    return [n // 4 for n in reads], [n // 4 for n in writes]


LONG = row_reduce(3, 2000)
FAULTS = {
    "missing barrier": (LONG, "d_barrier();", "", "nobody has written|race on shared memory"),
    "outside of the operands": (product(7), "e < 7", "e < 8", "a load outside of the operands"),
    "race of stores": (row_reduce(8, 64), "if (live && lane == 0)", "if (live)", "two threads write"),
    "divergent barrier": (LONG, "d_barrier();", "if (lane < 32) d_barrier();\n else d_barrier();", "not all threads reach the barrier"),
    "divergent shuffle": (row_reduce(8, 64), "float f1 = ", "float f1 = 0; if (lane < 3) f1 = ", "not all threads reach the shuffle"),
    "unwritten shared memory": (LONG, "(d_thread() & 31) == 0", "d_thread() == 0", "nobody has written"),
    "outside of shared memory": (column_reduce(64, 12), "s1[(y * ", "s1[64 + (y * ", "outside of its array"),
    "race on shared memory": (column_reduce(64, 12), "s1[(y * ", "s1[0 * (y * ", "race on shared memory: two threads write"),
    "store to what is only read": (product(7), "d_store_vector(o0", "d_store_vector((float *)a0", "only read"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_named(name: str, tmp_path: Path) -> None:
    nest, old, new, told = FAULTS[name]
    plan = _planned(nest)
    with pytest.raises(TwinFault, match=told):
        _run(_changed(plan, old, new), nest, tmp_path)


@pytest.mark.parametrize("nest", [LONG, product(7), row_reduce(8, 64), column_reduce(64, 12)])
def test_without_a_fault_nothing_is_found(nest: LoopNest, tmp_path: Path) -> None:
    twin, _ = _run(_planned(nest), nest, tmp_path)
    assert twin.unwritten == 0


def test_a_vector_at_an_odd_address_is_found(tmp_path: Path) -> None:
    nest = product(1024)
    plan = _planned(nest)
    twin, _ = _run(plan, nest, tmp_path, skew=1)  # element by element
    assert twin.unwritten == 0
    faulty = _changed(plan, "d_aligned(a0)", "true")
    with pytest.raises(TwinFault, match="no multiple of its size"):
        _run(_changed(faulty, "d_aligned(a1)", "true"), nest, tmp_path, skew=1)


def test_a_lost_remainder_is_seen(tmp_path: Path) -> None:
    nest = product(1027)
    plan = _planned(nest)
    twin, _ = _run(_changed(plan, "(whole || l < count)", "(whole)"), nest, tmp_path)
    assert twin.unwritten == 3 * 4
    twin, _ = _run(_changed(plan, "e < 1027", "e < 1024"), nest, tmp_path)
    assert twin.unwritten == 3 * 4


MATRICES = matrices(130, 40, 72)
PRELUDE_FAULTS = {
    "rows of a fragment in other registers": (
        "c[i][j], a[i], b[0], b[1])", "c[i][j], {a[i][0], a[i][2], a[i][1], a[i][3]}, b[0], b[1])", "error"
    ),
    "columns of a fragment changed": ("a[i], b[0], b[1])", "a[i], b[1], b[0])", "error"),
    "a matrix turned that should not be": ("d_load_matrix<turned>(r, tile, start", "d_load_matrix<!turned>(r, tile, start", "error"),
    "results laid in other lines": (
        "8 * h + lane / 4, column / 8 + j)", "8 * h + lane % 4, column / 8 + j)", "nobody has written|two threads write"
    ),
}  # fmt: skip


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("name", PRELUDE_FAULTS)
def test_a_wrong_fragment_makes_wrong_numbers(name: str, tmp_path: Path) -> None:
    old, new, told = PRELUDE_FAULTS[name]
    assert old in twin_text()
    plan = _matrix_plan()
    twin = Twin(plan.launches, tmp_path, prelude=twin_text().replace(old, new))
    with pytest.raises((AssertionError, TwinFault), match=told):
        run(FusedProduct(MATRICES, stored(MATRICES)), plan, twin, np.random.default_rng(0))


def _matrix_plan() -> CudaPlan:
    plan = plan_of(FusedProduct(MATRICES, stored(MATRICES)))
    assert isinstance(plan, CudaPlan)
    return plan


MATRIX_FAULTS = {
    "tiles stored without their swizzle": ("tile, 0 + d_piece_at<4>(which / 4, which % 4)", "tile, which * 8", "error"),
    "missing barrier": ("d_barrier();", "", "nobody has written|race on shared memory"),
    "copies that nobody waits for": ("d_copies_wait();", "", "nobody has written"),
    "one buffer for two steps": (" % 2 * ", " % 1 * ", "race on shared memory|error"),
    "a piece at an odd place": ("d_bring(tile, 0 + ", "d_bring(tile, 1 + ", "no multiple of 16 bytes"),
    "rows beyond the edge": ("line < 130", "line < 140", "a load outside of the operands"),
    "divergent product": ("d_multiply<", "if (d_thread() % 32) d_multiply<", "waits at the load of matrices"),
}  # fmt: skip


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("name", MATRIX_FAULTS)
def test_a_fault_around_the_matrix_units_is_found(name: str, tmp_path: Path) -> None:
    old, new, told = MATRIX_FAULTS[name]
    plan = _changed(_matrix_plan(), old, new)
    twin = Twin(plan.launches, tmp_path)
    with pytest.raises((AssertionError, TwinFault), match=told):
        run(FusedProduct(MATRICES, stored(MATRICES)), plan, twin, np.random.default_rng(0))


def test_a_missing_swizzle_is_counted(tmp_path: Path) -> None:
    """It makes no wrong numbers."""
    plan = _matrix_plan()
    text = twin_text()
    old = "(piece ^ (half_lines ? line >> 1 & 3 : line & 7))"
    assert old in text
    twin = Twin(plan.launches, tmp_path, prelude=text.replace(old, "piece"))
    run(FusedProduct(MATRICES, stored(MATRICES)), plan, twin, np.random.default_rng(0))
    assert twin.bank_conflicts > 0


def test_partial_results_that_nobody_made_are_seen(tmp_path: Path) -> None:
    nest = row_reduce(1, 70000)
    plan = _planned(nest)
    assert len(plan.launches) == 2
    with pytest.raises(TwinFault, match="what nobody has written"):
        _run(replace(plan, launches=plan.launches[1:]), nest, tmp_path)


def test_orders_of_threads_and_blocks_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k, nest in enumerate((softmax(5, 1000), layer_norm(6, 70), column_reduce(200, 24), row_reduce(1, 70000))):
        folder = tmp_path / str(k)
        folder.mkdir()
        found = []
        for order in ("forwards", "backwards", "7", "8"):
            monkeypatch.setenv("DCIR_TWIN_ORDER", order)
            found.append(_run(_planned(nest), nest, folder)[1])
        for other in found[1:]:
            assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))


_MAIN = """
extern "C" int printf(const char*, ...);
int main() {
  float *x = (float*)malloc(%(n)d * 4), *y = (float*)malloc(%(n)d * 4), *z = (float*)malloc(%(n)d * 4);
  for (int i = 0; i < %(n)d; i++) x[i] = y[i] = 0.01f * i;
  void *p[] = {z, x, y};
  const unsigned n[] = {%(grid)s, %(block)s, 0};
  const int r = run_%(kernel)s(p, n);
  printf("%%s", dcir_twin::fault());
  return r;
}
"""


@pytest.mark.parametrize("faulty", [False, True])
def test_the_twin_runs_under_sanitizers(faulty: bool, tmp_path: Path) -> None:
    plan = _planned(product(7))
    launch = (_changed(plan, "e < 7", "e < 9") if faulty else plan).launches[0]
    assert launch.arguments == ("o0", "a0", "a1")
    main = _MAIN % {
        "n": 7, "kernel": launch.kernel, "grid": ", ".join(map(str, launch.grid)), "block": ", ".join(map(str, launch.block)),
    }  # fmt: skip
    (tmp_path / "run.cpp").write_text(twin_text() + launch.text + entry_text(launch) + main)
    flags = ["-std=c++17", "-O1", "-w", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    subprocess.run(["g++", *flags, "run.cpp", "-o", "run"], cwd=tmp_path, check=True)
    done = subprocess.run(
        [tmp_path / "run"], capture_output=True, text=True, env={"ASAN_OPTIONS": "detect_leaks=0"}, check=False
    )
    assert (done.returncode != 0) == faulty, done.stderr
    assert ("heap-buffer-overflow" in done.stderr) == faulty


def test_each_block_begins_with_unwritten_shared_memory_however_many_arrays_there_are(tmp_path: Path) -> None:
    plan = _planned(LONG)
    assert plan.launches[0].grid[0] * plan.launches[0].grid[1] > 1
    arrays = "".join(f"D_SHARED(float, own{i}, 1);\nif (d_thread() == 0) own{i}[0] = 1.0f;\n" for i in range(300))
    text = plan.launches[0].text.replace("{\n", "{\n" + arrays, 1)
    many = replace(plan, launches=(replace(plan.launches[0], text=text), *plan.launches[1:]))
    found = []
    for name, made in (("few", plan), ("many", many)):
        (tmp_path / name).mkdir()
        found.append(_run(made, LONG, tmp_path / name)[1][0])
    np.testing.assert_array_equal(*found)
