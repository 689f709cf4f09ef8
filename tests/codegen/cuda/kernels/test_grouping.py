"""Lists of points by group on a GPU, and folds over them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ops.library.epilogue import identity_epilogue
from dcir.ops.library.segments import GroupSpec, SegmentSpec
from tests.codegen.cuda.running import check, planned, values
from tests.codegen.cuda.twin import Twin, aligned_like


def _group(points: int, groups: int, skip: int | None = None) -> GroupSpec:
    return GroupSpec((points,), ((1,),), ("i64",), (groups,), True, skip)


@pytest.mark.parametrize(("points", "groups"), [(1, 1), (50, 7), (300, 5), (1000, 1500), (700, 2)])
def test_points_are_listed_in_their_order(points: int, groups: int, tmp_path: Path) -> None:
    spec = _group(points, groups)
    plan = planned(spec)
    index = values("i64", points, np.random.default_rng(1), groups)
    check(spec, plan, Twin(plan.launches, tmp_path), [index], [("i32", groups + 1), ("i32", points)])


def test_a_bad_index_is_told_and_its_point_left_out(tmp_path: Path) -> None:
    spec = _group(5, 3)
    plan = planned(spec)
    outs = [aligned_like(np.zeros(4, np.int32), 0xFF), aligned_like(np.zeros(5, np.int32), 0xFF)]
    index = aligned_like(np.array([2, 7, 0, -1, 2]))
    assert Twin(plan.launches, tmp_path).run(plan, [index], outs)
    assert outs[0].tolist() == [0, 1, 1, 4]
    assert outs[1][:4].tolist() == [2, 0, 3, 4]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
@pytest.mark.parametrize("op", ["add", "max"])
def test_folds(op: str, dtype: str, tmp_path: Path) -> None:
    points, groups, columns = 90, 11, 12
    body = LoopNestBuilder((points, columns))
    body.store(body.output({"bf16": "f32"}.get(dtype, dtype)), (columns, 1), body.load(body.input(dtype), (columns, 1)))
    finish = identity_epilogue((groups, columns), dtype, (columns, 1))
    spec = SegmentSpec(op, dtype, (columns, 1), 0, points, groups, body.finish(), finish)
    list_plan, plan = planned(_group(points, groups)), planned(spec)
    twin = Twin((*list_plan.launches, *plan.launches), tmp_path)
    rng = np.random.default_rng(2)
    listed = check(
        _group(points, groups),
        list_plan,
        twin,
        [values("i64", points, rng, groups)],
        [("i32", groups + 1), ("i32", points)],
    )
    base, source = (values(dtype, n * columns, rng) for n in (groups, points))
    check(spec, plan, twin, [*listed, base, source], [(dtype, groups * columns)])
