"""The pipeline for GPUs as data: what of all passes is no claim about caches, registers and threads of a CPU, in the same order."""

from __future__ import annotations

from dcir.transforms.base import Pass
from dcir.transforms.tidy.fold_constants import FoldConstants
from dcir.transforms.tidy.merge_common_subexpressions import MergeCommonSubexpressions
from dcir.transforms.tidy.remove_dead_code import RemoveDeadCode
from dcir.transforms.tidy.shorten_indices import ShortenIndices
from dcir.transforms.tidy.simplify_algebra import SimplifyAlgebra
from dcir.transforms.tidy.trim_bodies import TrimBodies
from dcir.transforms.tier1_operator.call_libraries import CallLibraries
from dcir.transforms.tier1_operator.hoist_invariants import HoistInvariants
from dcir.transforms.tier2_fusion.fuse_around_products import FuseAroundProducts
from dcir.transforms.tier2_fusion.fuse_concatenated_writes import FuseConcatenatedWrites
from dcir.transforms.tier2_fusion.fuse_library_bias import FuseLibraryBias
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier2_fusion.fuse_siblings import FuseSiblings
from dcir.transforms.tier3_layout.assign_layouts import AssignLayouts
from dcir.transforms.tier3_layout.read_joined_in_place import ReadJoinedInPlace
from dcir.transforms.tier3_layout.sink_copies import SinkCopies
from dcir.transforms.tier4_movement.keep_in_place import KeepInPlace
from dcir.transforms.tier4_movement.leave_results_to_libraries import LeaveResultsToLibraries
from dcir.transforms.tier4_movement.order_execution import OrderExecution
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from dcir.transforms.tier4_movement.write_in_place import WriteInPlace

CUDA_PASSES: tuple[Pass, ...] = (
    # The graph says the same with less.
    FoldConstants(),
    ShortenIndices(),
    FoldConstants(),
    SimplifyAlgebra(),
    MergeCommonSubexpressions(),
    TrimBodies(),
    RemoveDeadCode(),
    HoistInvariants(),
    WriteInPlace(),
    # Neighbours in one nest.
    FuseProducers(spare_reads=True),
    FuseSiblings(),
    # Layouts, and what runs in them: products that are bound by memory in kernels of our own, others by libraries.
    AssignLayouts(),
    ReadJoinedInPlace(),
    SinkCopies(),
    FuseConcatenatedWrites(),
    FuseAroundProducts(),
    FuseLibraryBias(),
    CallLibraries(),
    # What runs when, and what lies where.
    OrderExecution(),
    LeaveResultsToLibraries(),
    KeepInPlace(),
    PlanArena(),
)


def cuda_pipeline(level: int) -> tuple[Pass, ...]:
    """The passes of ``-O<level>``, 0 to 4: those of all tiers up to it, in the one order; level 0 rewrites nothing."""
    return tuple(p for p in CUDA_PASSES if p.tier <= level) if level > 0 else ()
