"""MemoryPlan: what lies where, what is asked of it, and how one plan is made from another."""

import json

import pytest

from dcir.ir.memory_plan import ARENA, PREPARED, Alias, BufferPart, MemoryPlan, Placement, aligned


@pytest.fixture
def plan():
    """A value in the arena, one that is prepared, an input and a result in one block, and a transient in the input."""
    made = MemoryPlan().with_donated({"x0": BufferPart(3, 64, 1024)})
    made = made.with_shared([512, 256], {"x0": (0, 128), "y0": (0, 0), "y1": (1, 0)}, {"t5": Alias("x0", 32)})
    return made.with_block(PREPARED, 96, {"t7": 0}).with_block(ARENA, 640, {"t0": 0, "t1": 128})


def test_where_a_container_lies(plan):
    assert plan.placement("t1") == Placement(ARENA, 128)
    assert plan.placement("t7") == Placement(PREPARED, 0)
    assert plan.placement("t5") == Placement("shared 0", 160)
    assert plan.placement("y1") == ("shared 1", 0)
    assert plan.placement("t9") is None
    assert MemoryPlan(aliases={"t5": Alias("x0", 32)}).placement("t5") is None
    assert plan.offsets(ARENA) == {"t0": 0, "t1": 128} and plan.offsets("shared 0") == {"x0": 128, "y0": 0}


def test_how_large_blocks_are(plan):
    assert (plan.nbytes(ARENA), plan.nbytes(PREPARED), plan.nbytes("shared 1")) == (640, 96, 256)
    assert MemoryPlan().nbytes(ARENA) == 0
    assert plan.shared() == {"shared 0": 512, "shared 1": 256}


def test_what_has_a_place(plan):
    assert [name for name in ("t0", "t5", "t7", "x0", "t9") if plan.is_planned(name)] == ["t0", "t5", "t7", "x0"]
    # What has none yet belongs in the arena; prepared values and aliases do not.
    assert [name for name in ("t0", "t5", "t7", "t9") if plan.belongs_in_arena(name)] == ["t0", "t9"]


def test_scratch_is_the_arena_and_what_has_no_place(plan):
    sizes = {"t0": 100, "t1": 500, "t5": 40, "t7": 96}
    assert plan.scratch_bytes(sizes) == 640
    assert plan.scratch_bytes(sizes | {"t8": 50, "t9": 7}) == 697
    assert MemoryPlan().scratch_bytes(sizes) == sum(sizes.values())


def test_a_new_arena_leaves_the_rest(plan):
    smaller = plan.with_block(ARENA, 64, {"t1": 0})
    assert smaller.offsets(ARENA) == {"t1": 0} and smaller.nbytes(ARENA) == 64
    assert smaller.offsets(PREPARED) == plan.offsets(PREPARED) and smaller.aliases == plan.aliases
    assert plan.offsets(ARENA) == {"t0": 0, "t1": 128}
    assert smaller.with_block(ARENA, 640, {"t0": 0, "t1": 128}) == plan
    assert ARENA not in plan.with_block(ARENA, 0, {}).blocks


def test_new_shared_blocks_take_values_from_the_arena(plan):
    other = plan.with_shared([100], {"y1": (0, 0)}, {"t1": Alias("y1", 8)})
    assert other.shared() == {"shared 0": 100} and other.aliases == {"t1": ("y1", 8)}
    assert other.offsets(ARENA) == {"t0": 0} and not other.is_planned("x0") and not other.is_planned("t5")
    assert plan.with_shared().shared() == {} and plan.with_shared().donated == plan.donated


def test_places_that_are_given_up(plan):
    left = plan.without(["t1", "t5", "t9"])
    assert left.offsets(ARENA) == {"t0": 0} and not left.aliases and left.blocks == plan.blocks
    assert plan.without(["t9"]) is plan


def test_a_completed_plan_has_all_behind_the_arena(plan):
    whole = plan.completed({"t0": 100, "t1": 500, "t5": 4, "t7": 96, "t8": 50, "t9": 10})
    assert whole.offsets(ARENA) == {"t0": 0, "t1": 128, "t8": 640, "t9": 704}
    assert whole.nbytes(ARENA) == 714 and whole.completed({"t8": 50}) is whole
    assert MemoryPlan().completed({"t0": 0, "t1": 4}).offsets(ARENA) == {"t0": 0, "t1": 0}


def test_words(plan):
    said = [plan.describe(name) for name in ("t1", "t7", "t5", "y0", "t9")]
    assert said == ["at 128 of the arena", "at 0 of what is prepared", "at 32 of x0", "at 0 of shared 0", ""]


def test_json(plan):
    again = MemoryPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan and list(again.blocks) == list(plan.blocks)
    assert isinstance(again.placements["t0"], Placement) and again.donated["x0"].nbytes == 1024


@pytest.mark.parametrize(("nbytes", "whole"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_aligned(nbytes, whole):
    assert aligned(nbytes) == whole
