"""The normal form of products: batches dropped and merged, the epilogue's loops followed, refusals."""

from dcir.codegen.cpp.tiles.gemm.form import normal_form, transposed
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike


def _spec(batch, m, n, k, b_batch, *, index=False, bias=(0, 0, 1)):
    shape = (*batch, m, n)
    body = LoopNestBuilder(shape)
    x = body.load(body.input("f32"), contiguous(shape)) + body.load(
        body.input("f32"), (0,) * (len(shape) - len(bias)) + bias
    )
    if index:
        x = x + body.convert(body.index(0), "f32")
    body.store(body.output("f32"), contiguous(shape), x)
    a, c = contiguous((*batch, m, k)), contiguous(shape)
    return ContractionSpec(alike("f32"), batch, m, n, k, a, (*b_batch, n, 1), c, 0, body.finish())


def test_batches_become_rows():
    """A shared B: (2, 3) x 4 rows are 24 rows, and only the row and the column remain in the epilogue."""
    form = normal_form(_spec((2, 3), 4, 5, 6, (0, 0)))
    assert (form.spec.batch, form.spec.m, form.spec.a, form.spec.c) == ((), 24, (6, 1), (5, 1))
    assert form.indices([], "m", "n") == "0, 0, m, n"
    assert form.along(-1) and not form.along(-2)
    assert transposed(form).indices([], "m", "n") == "0, 0, n, m"


def test_unit_and_single_rows():
    """A batch of extent 1 goes; one row per batch element lets the batch become the rows."""
    assert normal_form(_spec((1,), 4, 5, 6, (30,))).indices([], "m", "n") == "0, m, n"
    form = normal_form(_spec((7,), 1, 5, 6, (0,)))
    assert (form.spec.batch, form.spec.m) == ((), 7)
    assert form.indices([], "m", "n") == "m, 0, n"


def test_refused():
    """What differs between batch elements keeps them apart: B, an index, a value per row of one element."""
    assert normal_form(_spec((2,), 4, 5, 6, (30,))).spec.batch == (2,)
    assert normal_form(_spec((2,), 4, 5, 6, (0,), index=True)).spec.batch == (2,)
    kept = normal_form(_spec((2,), 4, 5, 6, (0,), bias=(0, 1, 0)))
    assert kept.spec.batch == (2,)
    assert kept.indices(["x0"], "m", "n") == "x0, m, n"
